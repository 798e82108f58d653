"""What does a story say? Words with their effects, paths of steps with influence and effect, and what was left out."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit, Edge, EdgeSide
from keyhole.circuits.writer import Writer

LEAD = 1.0  # logits: effects are no shares of a smaller lead, which many things are several times as large as
MATTERS, LEAST = 0.1, 0.3  # a word or path matters if its effect is this share of the lead; or so many logits or nats


@dataclass(frozen=True)
class Word:
    """What the answer owes to a word of the prompt."""

    tokens: tuple[int, ...]  # of which it is made
    effect: float  # by how much the answer is less without it; below 0 the word holds it back
    influence: float  # share of the answer that is followed to its embedding
    flips: float | None = None  # share of the copies with another word in which the answer is no longer preferred
    minor: bool = False  # a function word, or a mark between clauses


@dataclass(frozen=True)
class Step:
    """What happens next on a path: a word is there, writers work at its token, or heads move it to another."""

    kind: Literal["word", "stay", "move"]
    dest: int
    src: int  # equal to dest for all but moves
    writers: tuple[Writer, ...]  # that carry most of it, from the lowest up
    more: int  # that are not named
    influence: float  # share of the answer that passes these writers, on any path
    side: EdgeSide | None = None  # of a move: how its heads read what comes before, for the most part
    role: str | None = None  # of a move: what it looks like
    tested: bool = False  # does the role hold when the words it is about are changed?
    effect: float | None = None  # by how much the answer is less with the writers at their baseline; None: not measured
    others: tuple[Writer, ...] = ()  # those that are not named


@dataclass(frozen=True)
class Path:
    """One way from a word to the answer."""

    share: float  # of the answer: its influence
    steps: tuple[Step, ...]
    effect: float | None = None  # by how much the answer is less with its edges at their baseline
    edges: tuple[Edge, ...] = field(default=(), repr=False)  # of the circuit, that carry it


@dataclass(frozen=True)
class Story:
    """Which words decide an answer, and the paths behind it: all shares add up to 1."""

    circuit: Circuit = field(repr=False)  # that is told
    paths: tuple[Path, ...]  # those that support the answer first
    weaker: float  # share of the answer on other paths from words
    constants: float  # that ends in what is written whatever the prompt says
    unfollowed: Mapping[str, float]  # that ends before it reaches a word, by reason
    metric: Literal["logit difference", "log-probability"] | None = None  # of effects; None: not measured
    answer: float | None = None  # the metric in the prompt
    words: tuple[Word, ...] = ()  # the largest effect first, whatever its sign; function words after all others
    words_by: str = ""  # how their effects were measured
    baseline: str = ""  # of steps and paths
    nothing: float | None = None  # the metric with every writer at the baseline
    kept: float | None = None  # share of the gap that is left with these paths alone
    cut: float | None = None  # and without them
    note: str = ""  # why something is missing

    @property
    def in_shares(self) -> bool:
        """Are effects shares of the answer? A log-probability has none, nor has a lead that is small or negative."""
        return self.metric == "logit difference" and (self.answer or 0.0) >= LEAD

    @property
    def least(self) -> float:
        """The smallest effect that matters."""
        return MATTERS * (self.answer or 0.0) if self.in_shares else LEAST

    @property
    def decisive(self) -> tuple[Word, ...]:
        """All words that matter, with either sign."""
        return tuple(word for word in self.words if abs(word.effect) >= self.least)

    @property
    def held(self) -> float:
        """Which share of the answer the told paths carry."""
        return sum(path.share for path in self.paths)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        names = ("held", "weaker", "constants", "metric", "answer", "words_by", "baseline", "nothing", "kept", "cut")
        return {
            "model": dict(self.circuit.model),
            "parameters": self.circuit.parameters.record(),
            "tokens": list(self.circuit.tokens),
            **{name: getattr(self, name) for name in (*names, "note")},
            "words": [asdict(word) for word in self.words],
            "unfollowed": dict(self.unfollowed),
            "paths": [
                {"share": path.share, "effect": path.effect, "steps": [asdict(step) for step in path.steps]}
                for path in self.paths
            ],
        }

    def __str__(self) -> str:
        from keyhole.story.text import story_text

        return story_text(self)

    __repr__ = brief


def verdict(effect: float | None, least: float) -> int:
    """Does it support the answer (1), hold it back (-1), or not matter alone (0)?"""
    return 0 if effect is None or abs(effect) < least else 1 if effect > 0 else -1
