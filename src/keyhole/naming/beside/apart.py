"""What separates two signals that attend alike? What the strongest places of one have and those of the other have not.

Each is named with the other's strongest places as its background, and both sentences are tested on places of texts that
were not looked at: do they tell the one from the other?
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.gathering.gather import TOKENS, gather
from keyhole.naming.judging.judge import rule_judge
from keyhole.naming.judging.questions import Posed, Question, marked
from keyhole.naming.judging.scores import LEVEL, Tested, tested
from keyhole.naming.judging.split import split
from keyhole.naming.name import Explainer, Name
from keyhole.naming.reading.texts import Source
from keyhole.naming.shown import Examples, Shown
from keyhole.naming.subject import Subject
from keyhole.progress import Progress, silent

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class Apart:
    """One of two signals, and what it has that the other has not."""

    signal: str
    other: str
    name: Name
    test: Tested | None  # None: no name, or too few examples
    shared: float  # share of its strongest places that are also among the other's

    @property
    def passes(self) -> bool:
        """Does the sentence tell them apart? p-values of both together, so each at half of 5 %."""
        return self.test is not None and self.test.p <= LEVEL / 2

    def __str__(self) -> str:
        if self.test is None:
            told = "untested" if self.name.text is not None else "nothing to test"
        else:
            right = f"{self.test.right} of {self.test.asked} right, p {self.test.p:.2g}"
            told = f"{'passes' if self.passes else 'fails'}: {right}"
        return f"{self.signal}, and not {self.other}: {self.name} [{told}]; {self.shared:.0%} of its places are shared"


def apart(a: Examples, b: Examples, explainer: Explainer = statistics, *, seed: int = 0) -> tuple[Apart, Apart]:
    """What each of two has that the other has not; places that both have are left out."""
    tops = a.of("top"), b.of("top")
    places = [{(one.tokens, one.dest, one.src) for one in top} for top in tops]
    both = places[0] & places[1]
    own = [[one for one in top if (one.tokens, one.dest, one.src) not in both] for top in tops]
    seen, held = split([*own[0], *own[1]], seed)
    ids, found = (a.subject.id, b.subject.id), []
    for i in (0, 1):
        mine, others = ([one for one in own[k] if one in seen] for k in (i, 1 - i))
        name = explainer(mine, others) if mine and others else Name(None, "statistics")
        ask = [[one for one in own[k] if one in held] for k in (i, 1 - i)]
        shared = len(both) / max(len(places[i]), 1)
        found.append(Apart(ids[i], ids[1 - i], name, _tested(name, *ask), shared))
    return found[0], found[1]


def _tested(name: Name, yes: Sequence[Shown], no: Sequence[Shown]) -> Tested | None:
    """One place of each text, as many as there are."""
    if name.text is None or not yes or not no:
        return None
    truths = [(one, True) for one in {one.tokens: one for one in yes}.values()]
    truths += [(one, False) for one in {one.tokens: one for one in no}.values()]
    posed = [Posed(Question("detection", (marked(one),)), truth, one.pick) for one, truth in truths]
    return tested(posed, [rule_judge(name.text, one.question) for one in posed], "top")


def tell_apart(
    model: "Model",
    a: Subject,
    b: Subject,
    corpus: Source | None = None,
    *,
    tokens: int = TOKENS,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Apart, Apart]:
    """The same from a corpus."""
    first, second = gather(model, [a, b], corpus, tokens=tokens, seed=seed, progress=progress)
    return apart(first, second, seed=seed)
