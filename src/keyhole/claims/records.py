"""What can be claimed? A sentence, what it means of a model, and the prompts on which it should hold, or should not.

A claim is plain data. It is kept in a file (`files.py`), and a model is asked whether it holds (`testing.py`).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Kind, SideName
from keyhole.errors import KeyholeError, require_choice
from keyhole.settings.claims import ClaimSettings
from keyhole.strict import is_index, is_number, quoted
from keyhole.tasks.example import Example

ClaimKind = Literal["moves", "matches", "needs", "suffices"]
_LONGEST = 500  # characters of a sentence: it is the title of a page


@dataclass(frozen=True)
class TaskPrompts:
    """Prompts that a task of the catalogue makes."""

    task: str
    n: int = 24
    seed: int = 0
    choices: dict[str, Any] = field(default_factory=dict)  # of the task, such as {"order": "ABBA"}

    def __post_init__(self) -> None:
        if not is_index(self.n) or not is_index(self.seed):
            raise KeyholeError("n and seed of a task's prompts are whole numbers from 0 on.")
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in self.choices.items()}
        object.__setattr__(self, "choices", plain)

    def __str__(self) -> str:
        chosen = "".join(f", {name}={value}" for name, value in self.choices.items())
        return f"{self.n} prompts of {self.task} (seed {self.seed}{chosen})"


@dataclass(frozen=True)
class Rewrite:
    """The claim's prompts in other words, on which it should hold as well."""

    name: str
    prompts: tuple[Example, ...]


@dataclass(frozen=True)
class Exchange:
    """Matched negatives: each prompt with another word in one role. Its answer is still the one asked about."""

    role: str
    by: str = ""  # the role whose word stands there instead; empty: the word that another prompt has there


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What all claims have in common."""

    kind: ClassVar[ClaimKind]
    claim: str  # the sentence
    prompts: TaskPrompts | tuple[Example, ...]
    rewrites: tuple[Rewrite, ...] = ()  # none: they are made by the task, or with the words of the other prompts
    negatives: Exchange | tuple[Example, ...] | None = None  # None: another word in the role that the claim is about
    unrelated: tuple[str, ...] = ()  # texts that the claim says nothing of; none: sentences about everyday things
    settings: ClaimSettings = field(default_factory=ClaimSettings)

    def __post_init__(self) -> None:
        if not isinstance(self.claim, str) or not self.claim.strip() or len(self.claim) > _LONGEST:
            raise KeyholeError(f"a claim is a sentence of up to {_LONGEST} characters, not {quoted(self.claim)}.")
        if not isinstance(self.prompts, TaskPrompts):
            object.__setattr__(self, "prompts", tuple(self.prompts))
            if not all(isinstance(prompt, Example) for prompt in self.prompts):  # type: ignore[union-attr]
                raise KeyholeError("the prompts of a claim are examples with answers, or of a task.")

    @property
    def says(self) -> str:
        """What is tested, as the records say it and not as the sentence does."""
        raise NotImplementedError

    @property
    def exchanged(self) -> str | None:
        """The role that has another word in matched negatives, unless the claim names it; None: the answer's."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class _AtTokens(Claim):
    """A claim about one head at two tokens of each prompt."""

    head: Head
    src: str  # the role of the token attended to; IO+1 is the token after it
    dest: str = "END"  # the role of the token that attends

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (len(self.head) == 2 and all(is_index(number) for number in self.head)):
            raise KeyholeError(f"a head is a layer and a number, such as 3.6, not {quoted(self.head)}.")
        object.__setattr__(self, "head", tuple(self.head))

    @property
    def exchanged(self) -> str | None:
        """The source's: another word there is not moved as this one is."""
        return self.src


@dataclass(frozen=True, kw_only=True)
class Moves(_AtTokens):
    """A head moves what stands at one token to another, and the answer needs it there.

    >>> prompts = TaskPrompts("ioi", n=16)
    >>> print(Moves(claim="Head 1.6 moves the receiver to the end", prompts=prompts, head=(1, 6), src="IO").says)
    head 1.6 moves IO to END
    """

    kind: ClassVar[ClaimKind] = "moves"

    @property
    def says(self) -> str:
        """What is tested."""
        return f"head {head_name(self.head)} moves {self.src} to {self.dest}"


@dataclass(frozen=True, kw_only=True)
class Matches(_AtTokens):
    """Some channels of a head are why it looks from one token at another."""

    kind: ClassVar[ClaimKind] = "matches"
    channels: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "channels", _channels(self.channels))

    @property
    def says(self) -> str:
        """What is tested."""
        which = ",".join(map(str, self.channels))
        return f"channels {which} of head {head_name(self.head)} match {self.src}, from {self.dest}"


@dataclass(frozen=True)
class Sender:
    """Who writes a signal: at the token of the side that reads it; a head, by default from all tokens."""

    kind: Kind
    layer: int
    head: int | None = None
    src: str | None = None  # of a head: the role of the token that it moves from

    def __str__(self) -> str:
        name = f"head {self.layer}.{self.head}" if self.kind == "head" else f"{self.kind} {self.layer}"
        return ("embedding" if self.kind == "embedding" else name) + (f" from {self.src}" if self.src else "")


@dataclass(frozen=True, kw_only=True)
class Needs(_AtTokens):
    """Without one signal, from a writer into channels of a head, the answer is lost, or a share of it."""

    kind: ClassVar[ClaimKind] = "needs"
    channels: tuple[int, ...]
    sender: Sender
    side: SideName = "src"
    loses: float | None = None  # the least share of the answer that is lost; None: as the settings say
    flips: bool = False  # another answer is likelier then, in most prompts

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "channels", _channels(self.channels))
        require_choice("side", self.side, SideName)
        if self.loses is not None and not (is_number(self.loses) and 0 < self.loses <= 2):
            raise KeyholeError(f"loses is {quoted(self.loses)}, but is a share of the answer above 0.")

    @property
    def says(self) -> str:
        """What is tested."""
        into = f"channels {','.join(map(str, self.channels))} of head {head_name(self.head)}"
        lost = "the answer flips" if self.flips else f"at least {self.least:.0%} of the answer is lost"
        at = f"{self.side} side, {self.dest} <- {self.src}"
        return f"without the signal {self.sender} -> {into} ({at}) {lost}"

    @property
    def least(self) -> float:
        """The least share of the answer that is lost."""
        return self.settings.least if self.loses is None else self.loses

    @property
    def exchanged(self) -> str | None:
        """The token that the signal is read at."""
        return self.src if self.side == "src" else self.dest


@dataclass(frozen=True, kw_only=True)
class Suffices(Claim):
    """A circuit carries the answer by itself, in prompts of its own template."""

    kind: ClassVar[ClaimKind] = "suffices"
    circuit: Circuit = field(repr=False)
    keeps: float = 0.8  # the least share of the answer

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.keeps) and 0 < self.keeps <= 1):
            raise KeyholeError(f"keeps is {quoted(self.keeps)}, but is a share of the answer above 0 and up to 1.")

    @property
    def says(self) -> str:
        """What is tested."""
        return f"a circuit of {len(self.circuit.edges)} edges carries at least {self.keeps:.0%} of the answer"

    @property
    def exchanged(self) -> str | None:
        """Whichever role the answer has."""
        return None


KINDS: dict[str, type[Claim]] = {kind.kind: kind for kind in (Moves, Matches, Needs, Suffices)}


def _channels(channels: Any) -> tuple[int, ...]:
    numbers = tuple(channels)
    if not numbers or len(set(numbers)) < len(numbers) or not all(is_index(k) for k in numbers):
        raise KeyholeError(f"channels are one or more different numbers from 0 on, not {quoted(numbers)}.")
    return numbers
