"""Who is asked, how much is shown, and what was said so far? What explainer and judge of a model share."""

from dataclasses import dataclass, field

from keyhole.errors import KeyholeError
from keyhole.naming.llm.endpoint import Endpoint
from keyhole.naming.llm.gate import Gate
from keyhole.naming.llm.reply import Reply
from keyhole.naming.llm.request import Request
from keyhole.naming.llm.transcript import Transcript


@dataclass(frozen=True)
class Prompting:
    """How much a model sees, and how much it may say."""

    examples: int = 20  # that an explainer sees, at most
    negatives: int = 10  # beside them, where the signal does not fire
    name_tokens: int = 400  # of an explanation, reasons included
    judge_tokens: int = 5  # of a judge's answer; a model that thinks aloud needs more

    def __post_init__(self) -> None:
        if min(self.examples, self.name_tokens, self.judge_tokens) < 1 or self.negatives < 0:
            raise KeyholeError("show at least one example, and leave at least one token for an answer.")


@dataclass
class Talk:
    """A conversation with an endpoint that is written down."""

    endpoint: Endpoint
    transcript: Transcript
    prompting: Prompting = field(default_factory=Prompting)
    seed: int = 0
    again: bool = False  # ask once more where an answer was malformed
    logprobs: bool = field(default=True, init=False)  # until the endpoint says that it gives none
    gate: Gate = field(init=False, repr=False)
    asked: set[str] = field(default_factory=set, init=False, repr=False)  # digests, in this talk

    def __post_init__(self) -> None:
        rate = self.endpoint.patience.per_minute
        self.gate = Gate(60 / rate if rate else 0.0)

    def known(self, request: Request) -> Reply | None:
        """What was answered before, if it was."""
        reply = self.transcript.get(request)
        once_more = self.again and request.digest not in self.asked
        return None if reply is not None and once_more and reply.status == "malformed" else reply
