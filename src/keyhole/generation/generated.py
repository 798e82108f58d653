"""What did the model answer, and why did it write this token? A record each of whose tokens can be traced."""

import operator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, Unpack

from keyhole.brief import Head, Table, as_dataframe, model_label
from keyhole.edits.applying import edited
from keyhole.errors import KeyholeError
from keyhole.models.run import Run
from keyhole.settings.measuring import GenerateSettings
from keyhole.settings.tracing import TraceOptions, TraceSettings
from keyhole.strict import quoted

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.faithfulness.baseline import Likes
    from keyhole.faithfulness.routes import Story
    from keyhole.models.tokens import Prompt
    from keyhole.progress import Progress
    from keyhole.tracing.answers import Tokens
    from keyhole.tracing.candidates import Keys
    from keyhole.tracing.firing import Firing, Tau

Stopped = Literal["end", "stop", "length", "full", "interrupted"]
REASONS: dict[Stopped, str] = {
    "end": "the model ended its answer",
    "stop": "a stop text was written",
    "length": "max_new_tokens were written",
    "full": "the model has no more positions",
    "interrupted": "it was interrupted",
}


@dataclass(frozen=True)
class GeneratedToken:
    """One token of an answer."""

    id: int  # in the vocabulary
    text: str  # of this token alone, with its space
    probability: float  # that the model gave it, whatever the temperature


@dataclass(frozen=True)
class Generated:
    """A prompt, what the model wrote after it, and the run of both together."""

    prompt: str  # as the model reads it, special tokens of a chat template included
    text: str  # the answer, without special tokens
    tokens: tuple[GeneratedToken, ...]  # of the answer, the one that ended it included
    stopped: Stopped  # why it ended: see `reason`
    settings: GenerateSettings = field(repr=False)  # how it was written
    run: Run = field(repr=False, compare=False)  # of prompt and answer, from one pass

    @property
    def reason(self) -> str:
        """Why the answer ended, in words."""
        return REASONS[self.stopped]

    @property
    def start(self) -> int:
        """The position of the answer's first token in the run."""
        return len(self.run) - len(self.tokens)

    def index(self, at: SupportsIndex | str) -> int:
        """Which token of the answer is meant: an index (negative counts from the end), or the text of exactly one.

        Args:
            at: The index or the text.

        >>> import keyhole
        >>> answer = keyhole.load().generate("When Mary and John", max_new_tokens=2)
        >>> answer.index(-1)
        1
        """
        n, texts = len(self.tokens), [token.text.strip() for token in self.tokens]
        if not isinstance(at, str):
            i = operator.index(at)
            if not -n <= i < n:
                raise KeyholeError(f"at is {i}, but the answer has {n} tokens: give an index from 0 to {n - 1}.")
            return i % n
        same = [i for i, text in enumerate(texts) if text == at.strip()]
        if len(same) == 1:
            return same[0]
        listing = " ".join(f"{i}:{text}" for i, text in enumerate(texts))
        problem = (
            f"is ambiguous: tokens {same} have this text. Give an index." if same else "is no token of the answer:"
        )
        raise KeyholeError(f"at {quoted(at)} {problem} {listing}")

    def before(self, at: SupportsIndex | str) -> Run:
        """The run of everything before a token of the answer, with the same edits. Its last token predicts that token.

        Args:
            at: Which token: its index in the answer, or the text of exactly one.

        >>> import keyhole
        >>> answer = keyhole.load().generate("When Mary and John", max_new_tokens=2)
        >>> answer.before(1).tokens[-1] == answer.tokens[0].text
        True
        """
        with edited(self.run.model, self.run.edits):
            return self.run.model.run(self.run.token_ids[: self.start + self.index(at)])

    def trace(
        self,
        at: SupportsIndex | str,
        *,
        against: "Tokens | None" = None,
        settings: TraceSettings | None = None,
        progress: "Progress | None" = None,
        **options: Unpack[TraceOptions],
    ) -> "Circuit":
        """Which circuit is behind this token of the answer?

        Args:
            at: Which token: its index in the answer (negative counts from the end), or the text of exactly one.
            against: Another token in its place, given as `Run.trace` takes it.
            settings: How it is traced, as `Run.trace` takes it.
            progress: Called with the number of layers done and their total.
            **options: Choices by name, as `Run.trace` takes them.

        Returns:
            The `Circuit` of the prompt cut before this token, with the token as its target.

        >>> import keyhole
        >>> prompt = "When Mary and John went to the store, John gave a drink to"
        >>> answer = keyhole.load().generate(prompt, max_new_tokens=1)
        >>> answer.trace(at=0, through="heads").parameters.target_text
        ('Mary',)
        """
        target = self.tokens[self.index(at)].id
        return self.before(at).trace(target, against=against, settings=settings, progress=progress, **options)

    def explain(
        self,
        at: SupportsIndex | str,
        head: Head,
        src: int | str | None = None,
        *,
        dest: int | str = -1,
        tau: "Tau" = "dynamic",
        keys: "Keys" = "all",
        why_not: bool = False,
    ) -> "Firing":
        """Which signals made a head attend where it did, when this token of the answer was written?

        Args:
            at: Which token: its index in the answer, or the text of exactly one.
            head: Layer and head, such as (3, 6).
            src: The attended token of what stands before. Default: the one that is attended to most.
            dest: The attending token. Default: the last one before this token, which predicts it.
            tau: As `Run.explain` takes it.
            keys: What a removal on the src side touches: "all" keys, or the "source" alone.
            why_not: Explain what kept the head from attending to `src`.

        >>> import keyhole
        >>> prompt = "When Mary and John went to the store, John gave a drink to"
        >>> answer = keyhole.load().generate(prompt, max_new_tokens=1)
        >>> answer.explain(at=0, head=(1, 6)).src
        2
        """
        return self.before(at).explain(head, dest, src, tau=tau, keys=keys, why_not=why_not)

    def story(
        self,
        at: SupportsIndex | str,
        *,
        against: "Tokens | None" = None,
        like: "Likes | None" = None,
        counterfactual: "Prompt | None" = None,
        progress: "Progress | None" = None,
    ) -> "Story":
        """Which words decided this token of the answer, and by which paths? See `Circuit.story`.

        Args:
            at: Which token: its index in the answer, or the text of exactly one.
            against: Another token in its place, given as `Run.trace` takes it.
            like: Prompts of the same template, as `Circuit.effects` takes them.
            counterfactual: One prompt of equal length instead.
            progress: Called with how much is done, of a thousand.
        """
        circuit = self.trace(at, against=against)
        return circuit.story(like=like, counterfactual=counterfactual, progress=progress)

    def to_dataframe(self) -> Table:
        """A row per token of the answer: a pandas DataFrame, or records without pandas.

        >>> import keyhole
        >>> len(keyhole.load().generate("When Mary and John", max_new_tokens=2).to_dataframe())
        2
        """
        return as_dataframe([{"index": i, **asdict(token)} for i, token in enumerate(self.tokens)])

    def record(self) -> dict[str, Any]:
        """As plain data.

        >>> import keyhole
        >>> keyhole.load().generate("When Mary and John", max_new_tokens=2).record()["text"]
        ' went to'
        """
        return {
            "model": self.run.model.name,
            "prompt": self.prompt,
            "text": self.text,
            "tokens": [asdict(token) for token in self.tokens],
            "stopped": self.stopped,
            "settings": asdict(self.settings),
            "token_ids": list(self.run.token_ids),
        }

    def __len__(self) -> int:
        return len(self.tokens)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        said = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"<Generated by {model_label(self.run.model.name)}: {len(self)} tokens, {said!r}; {self.reason}>"
