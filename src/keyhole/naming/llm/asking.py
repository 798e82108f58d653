"""How are thousands of questions asked at once, by code that asks one at a time? It is run as often as it needs.

    with open_transcript("names.jsonl") as transcript:
        talk = Talk(Endpoint("http://localhost:8000/v1", "qwen"), transcript)
        naming = lambda explainer, judges: name_signals(examples, explainer, judges)
        print(estimate(talk, naming))
        print(with_model(talk, naming))

A run is given an explainer and judges that look answers up in the transcript and note what is not there. What was noted
is asked together, and the next run goes further: first the names, then the questions about them, then the result.
Running costs nothing beside asking. The result is the last run's, all of whose answers are the model's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from keyhole.errors import KeyholeError
from keyhole.naming.judging.judge import Answer, Judge
from keyhole.naming.judging.questions import Question, QuestionKind
from keyhole.naming.llm.explainer import explain_request, llm_explainer
from keyhole.naming.llm.judge import judge_request, llm_judges, read_answer
from keyhole.naming.llm.request import Request
from keyhole.naming.llm.talk import Talk
from keyhole.naming.llm.together import send_all
from keyhole.naming.name import Explainer, Name
from keyhole.naming.shown import Shown
from keyhole.progress import Progress, silent

T = TypeVar("T")
Naming = Callable[[Explainer, Mapping[QuestionKind, Judge]], T]  # whatever is done with an explainer and judges

# stands for a name that is not known yet; as long as one
_PENDING = "(pending) dest is a word of some kind, and src is another one that stands in some relation to it, number"


@dataclass(frozen=True)
class Price:
    """Of a million tokens, in any currency."""

    tokens_in: float
    tokens_out: float

    def __post_init__(self) -> None:
        if not (self.tokens_in >= 0 and self.tokens_out >= 0):
            raise KeyholeError("prices of tokens are not negative.")


@dataclass(frozen=True)
class Cost:
    """What is still to be asked."""

    requests: int
    known: int  # answered before: they cost nothing
    tokens_in: int  # about: counted without the model's tokenizer
    tokens_out: int  # at most
    price: float | None  # at most, as far as the tokens are counted rightly; None: no price was given

    def __str__(self) -> str:
        told = f"{self.requests:,} requests, about {self.tokens_in:,} tokens in, at most {self.tokens_out:,} out"
        known = f" ({self.known:,} more are answered)" if self.known else ""
        return told + known + ("" if self.price is None else f": at most about {self.price:.2f}")


@dataclass
class _Notes:
    """What a run asked for that the transcript does not have."""

    talk: Talk
    guess: bool  # of names that are not known yet, note the questions, too
    wanted: dict[str, Request] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    names: int = 0

    def explain(self, fires: Sequence[Shown], background: Sequence[Shown]) -> Name:
        if not fires or self.has(explain_request(self.talk, fires, background)):
            return llm_explainer(self.talk)(fires, background)
        self.names += 1
        return Name(f"{_PENDING} {self.names}", self.talk.endpoint.model)

    def judge(self, text: str, question: Question) -> Answer:
        if text.startswith(_PENDING) and not self.guess:
            return Answer()
        request = judge_request(self.talk, text, question)
        reply = self.talk.known(request) if self.has(request) else None
        return Answer() if reply is None else read_answer(reply, question)

    def has(self, request: Request) -> bool:
        if self.talk.known(request) is not None:
            self.known.add(request.digest)
            return True
        self.wanted[request.digest] = request
        return False

    def run(self, naming: Naming[T]) -> T:
        return naming(self.explain, dict.fromkeys(llm_judges(self.talk), self.judge))


def estimate(talk: Talk, naming: Naming[object], price: Price | None = None) -> Cost:
    """What it would cost to go on from the transcript; nothing is asked. Unknown names are guessed to be long."""
    notes = _Notes(talk, guess=True)
    notes.run(naming)
    wanted = notes.wanted.values()
    into, out = sum(one.tokens for one in wanted), sum(one.max_tokens for one in wanted)
    money = None if price is None else (into * price.tokens_in + out * price.tokens_out) / 1e6
    return Cost(len(wanted), len(notes.known), into, out, money)


def with_model(talk: Talk, naming: Naming[T], *, progress: Progress = silent) -> T:
    """The result with the model's answers, asking for those that the transcript does not have."""
    while True:
        notes = _Notes(talk, guess=False)
        result = notes.run(naming)
        if not notes.wanted:
            return result
        send_all(talk, list(notes.wanted.values()), progress=progress)
