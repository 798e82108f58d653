"""What speaks for one answer, and what for another, where either is several tokens? Each traced in its own run.

After the first token in which they differ, two answers stand in different texts: no circuit has both. What is there is
the difference of their total log-probabilities, each answer's own circuit, and one circuit of where they part.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from keyhole.brief import model_label
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.text import ends_of, node_label, words_label
from keyhole.errors import KeyholeError
from keyhole.models.tokens import token_label, token_texts
from keyhole.progress import Progress
from keyhole.report import Report, Reported, Section, Table
from keyhole.settings.fields import chosen
from keyhole.settings.tracing import TraceOptions, TraceSettings
from keyhole.tracing.answers import Continuation, Target, choose_targets, continuation_of, follow
from keyhole.tracing.batch import Untraced
from keyhole.tracing.linear import Probe
from keyhole.tracing.trace import trace_many

if TYPE_CHECKING:
    from keyhole.models.run import Run

_SHOWN = 12  # rows of a table


@dataclass(frozen=True)
class Answer:
    """One of two answers: its tokens with their log-probabilities, each after those before it, and its circuit."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    circuit: Circuit | Untraced

    @property
    def total(self) -> float:
        """The log-probability of all of it."""
        return sum(self.log_probabilities)

    def __str__(self) -> str:
        return " + ".join(map(repr, self.texts))


@dataclass(frozen=True)
class Both(Reported):
    """Two answers of one prompt: each traced in its own run, and what tells them apart where they part."""

    model: str
    target: Answer
    against: Answer
    apart: Circuit | Untraced  # of the first tokens in which they differ, one against the other

    @property
    def difference(self) -> float:
        """By how much the first answer's total log-probability is larger."""
        return self.target.total - self.against.total

    def record(self) -> dict[str, Any]:
        """As plain data, with the circuits as their files have them."""
        from keyhole.circuits.files import to_json

        def answer(one: Answer) -> dict[str, Any]:
            tokens = {"ids": list(one.ids), "texts": list(one.texts), "log_probabilities": list(one.log_probabilities)}
            return {**tokens, "total": one.total, **circuit(one.circuit)}

        def circuit(found: Circuit | Untraced) -> dict[str, Any]:
            return (
                {"error": str(found.error)} if isinstance(found, Untraced) else {"circuit": json.loads(to_json(found))}
            )

        return {
            "model": self.model,
            "difference": self.difference,
            "target": answer(self.target),
            "against": answer(self.against),
            "apart": circuit(self.apart),
        }

    def report(self) -> Report:
        """What it says."""
        one, other = str(self.target), str(self.against)
        tokens = Table(("answer", "token", ">log-probability"), [*_tokens(self.target), *_tokens(self.against)])
        ends, seeds = _beside(self, _ends), _beside(self, _seeds)
        columns = (f">for {one}", f">for {other}")
        refused = [
            f"{name} is not traced: {found.error}"
            for name, found in (
                (one, self.target.circuit),
                (other, self.against.circuit),
                ("What tells them apart", self.apart),
            )
            if isinstance(found, Untraced)
        ]
        summary = (
            f"The log-probability of {one} is {self.target.total:+.2f}, that of {other} {self.against.total:+.2f}: a "
            f"difference of {self.difference:+.2f}. Each is traced in its own run, as they are different texts after "
            "their first difference."
        )
        if not isinstance(self.apart, Untraced):
            parted = self.apart.parameters
            where = token_label(self.apart.tokens, parted.end)
            summary += (
                f" They part at {where}: one circuit has what speaks for {words_label(parted.target_text)} against "
                f"{words_label(parted.against_text)}."
            )
        return Report(
            f"Two answers: {model_label(self.model)}",
            summary,
            [
                Section("Their tokens", [*refused, tokens]),
                Section("Where the influence ends", [_ENDS, Table(("where", *columns), ends)] if ends else []),
                Section("Who writes at the answer", [_SEEDS, Table(("writer", *columns), seeds)] if seeds else []),
            ],
            tokens,
        )

    def __str__(self) -> str:
        from keyhole.report.terminal import as_text

        return as_text(self.report())


_ENDS = "How large a share of each answer is followed to there."
_SEEDS = "Shares of what pushes towards each answer, at the tokens that predict it."


def _tokens(answer: Answer) -> list[tuple[str, str, float]]:
    return [
        (str(answer), repr(text), value) for text, value in zip(answer.texts, answer.log_probabilities, strict=True)
    ]


def _ends(circuit: Circuit) -> Mapping[str, float]:
    return ends_of(circuit) if circuit.influence else {}


def _seeds(circuit: Circuit) -> Mapping[str, float]:
    into = [edge for edge in circuit.edges if edge.side == "target"]
    total = sum(edge.weight for edge in into)
    return {node_label(circuit.nodes[edge.sender], circuit.tokens): edge.weight / total for edge in into}


def _beside(both: Both, of: Any) -> list[tuple[str, float | None, float | None]]:
    """What is said of either circuit, the largest first."""
    pair = [{} if isinstance(a.circuit, Untraced) else of(a.circuit) for a in (both.target, both.against)]
    names = sorted({*pair[0], *pair[1]}, key=lambda name: -max(side.get(name, 0.0) for side in pair))
    return [(name, pair[0].get(name), pair[1].get(name)) for name in names[:_SHOWN]]


def trace_both(
    run: "Run",
    target: Target,
    against: Target,
    *,
    settings: TraceSettings | None = None,
    end: int | str = -1,
    progress: Progress | None = None,
    **options: Unpack[TraceOptions],
) -> Both:
    """What speaks for either of two answers, one or both of several tokens? See `Run.trace_both`."""
    how, at = chosen(settings, TraceSettings, options), run.position(end, "end")
    if how.svt is not None or isinstance(how.metric, Probe):
        raise KeyholeError("two answers are set side by side by accpp, each as an answer: leave out svt and probes.")
    run._require_fresh()
    pair = [_one(run, answer, at) for answer in (target, against)]
    prompt = run if at == len(run) - 1 else run.model.run(run.token_ids[: at + 1], bos=False)
    one, other = (Continuation(ids) for ids in pair)
    found = trace_many([prompt] * 2, [one, other], settings=how, errors="keep", progress=progress)
    (apart,) = trace_many([prompt], [one], against=[other], settings=replace(how, metric="linear"), errors="keep")
    first, second = (_answer(prompt, ids, circuit) for ids, circuit in zip(pair, found, strict=True))
    return Both(run.model.name, first, second, apart)


def _one(run: "Run", answer: Target, end: int) -> tuple[int, ...]:
    """The tokens of one answer; several at once are refused."""
    ids = continuation_of(run, answer, end)
    if ids is None:
        assert answer is not None
        ids = tuple(choose_targets(run, answer, end))
        if len(ids) != 1:
            raise KeyholeError("two answers are set side by side, and one of these is several: name one for each.")
    return ids


def _answer(run: "Run", ids: tuple[int, ...], circuit: Circuit | Untraced) -> Answer:
    end, whole = len(run) - 1, None if isinstance(circuit, Untraced) else circuit.run
    whole = follow(run, ids[:-1], end) if whole is None else whole
    likely = [float(whole.logits[end + i].double().log_softmax(-1)[token]) for i, token in enumerate(ids)]
    return Answer(ids, token_texts(run.model.tokenizer, ids), tuple(likely), circuit)
