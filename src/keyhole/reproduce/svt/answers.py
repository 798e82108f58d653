"""Which circuits lie behind the answers to IOI prompts? Traced once, for sets of their edges to be removed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from keyhole.circuits.circuit import Circuit
from keyhole.intervene.deltas import Cut
from keyhole.intervene.remove import CutMode, Metric, intervene
from keyhole.intervene.verification import parallel
from keyhole.lab.heads.sparse import Head
from keyhole.reproduce.job import Job
from keyhole.reproduce.svt.effects import LOCAL
from keyhole.reproduce.svt.ioi import LEAST, Subject, measured_on, metric_of, subject, trace_answer

_EDGES = (
    "Edges are the signals of circuits that the present tracer finds behind logit(IO) - logit(S), read at one token "
    "each; changes are of that difference, in prompts where each head has edges."
)


@dataclass(frozen=True)
class Answer:
    """The circuit behind one answer, and the logits of IO and S."""

    circuit: Circuit
    metric: Metric

    @property
    def writers(self) -> Counter[Head]:
        """How many edges leave each head?"""
        nodes = [self.circuit.nodes[edge.source] for edge in self.circuit.edges if edge.side != "target"]
        heads = [(n.layer, n.head) for n in nodes if n.kind == "head"]
        return Counter((layer, head) for layer, head in heads if layer is not None and head is not None)

    def out_of(self, head: Head) -> list[Cut]:
        """All signals that leave a head, from whatever token."""
        nodes = [i for i, n in enumerate(self.circuit.nodes) if n.kind == "head" and (n.layer, n.head) == head]
        return [cut for node in nodes for cut in parallel(self.circuit, node)]

    def changes(self, sets: Sequence[Sequence[Cut]], mode: CutMode) -> list[float]:
        """What each set, removed at once, does to the logit difference."""
        assert self.circuit.run is not None
        found = intervene(self.circuit.run, sets, self.metric, mode=mode)
        return [one.metric_after - one.metric_before for one in found]


@dataclass(frozen=True)
class Answers:
    """What could be traced in a model."""

    model: str | None  # as it was asked for
    traced: tuple[Answer, ...]
    prompts: int  # with those in which nothing could be traced
    about: str  # which prompts

    @property
    def skipped(self) -> int:
        """Prompts without a circuit."""
        return self.prompts - len(self.traced)

    @property
    def note(self) -> str:
        """What was traced, and in which prompts nothing was."""
        left = f"In {self.skipped} of {self.prompts} prompts no writer pushes towards IO; they are left out. "
        return f"{_EDGES} {left if self.skipped else ''}{LOCAL} {measured_on(self)}"


def answers(job: Job) -> Answers:
    """Circuits of a job's model, traced once for all figures."""
    return _answers(subject(job))


@lru_cache(maxsize=1)
def _answers(seen: Subject) -> Answers:
    found = []
    for example, run in seen.runs():
        metric = metric_of(example, run)
        circuit = trace_answer(run, metric.targets[0], against=metric.against[0], seeds="linear", keys="source")
        if circuit is not None:
            found.append(Answer(circuit, metric))
    return Answers(seen.asked.model, tuple(found), len(seen.examples), seen.prompts.about)


def few(many: int, what: str) -> str:
    """Why nothing is judged."""
    return f"Prompts with {what}: {many}, too few to judge ({LEAST} are asked)."
