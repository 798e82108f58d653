"""Tools that find and test circuits: trace, sufficient, verify, compare."""

from dataclasses import replace
from typing import Any

from pydantic import Field

from keyhole.agents.bodies import Answer, AnswerBody, CircuitBody, OutBody, ToolBody
from keyhole.agents.offered import Offered
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.files import SUFFIXES, save, to_json
from keyhole.circuits.text import circuit_text, weight_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.effects import unasked_faithfulness
from keyhole.intervene.removal import Mode
from keyhole.models.run import Run
from keyhole.report.terminal import as_text
from keyhole.requests.bodies import Seed, takes
from keyhole.requests.jobs import Reporter
from keyhole.settings.measuring import SufficientSettings
from keyhole.settings.tracing import TraceSettings
from keyhole.strict import parse_json
from keyhole.studies.comparison.compare import compare as compare_both
from keyhole.studies.comparison.operands import PREFIX, Comparable
from keyhole.studies.settings import CompareSettings
from keyhole.tasks.files import read_prompts

_LINES, _DEEP = 60, 4  # of a circuit's tree
_BASELINES = ("words", "resting")

# Which circuit is behind an answer? Traced, or the smallest that suffices.


@takes(TraceSettings, "method", "metric", "tau", "keys", "first_token", "through")
class TraceBody(AnswerBody, OutBody):
    """An answer, how it is traced, and what is measured."""

    faithfulness: bool = Field(True, description="Measure how much of the answer the circuit carries by itself.")
    effects: bool = Field(
        False, description="Measure what the answer loses without each token, node and edge, in a pass each."
    )


def trace(offered: Offered, body: TraceBody, reporter: Reporter) -> Answer:
    """Which circuit is behind an answer?

    Goes back from the answer to the heads and MLPs that write towards it, to the signals that make those heads attend,
    and so on to the tokens. Give out to keep the circuit for verify and compare.
    """
    _require_place(offered, body)
    run = offered.ran(body, reporter).run
    circuit = run.trace(
        body.target,
        against=body.against,
        end=body.end,
        settings=body.settings(TraceSettings),
        progress=reporter.progress("Tracing"),
    )
    why = ""
    if body.effects:
        circuit = circuit.effects(progress=reporter.progress("Measuring effects"))
    elif body.faithfulness:
        circuit, why = unasked_faithfulness(circuit, progress=reporter.progress("Measuring faithfulness"))
    return _found(offered, body, circuit, run, [f"faithfulness was not measured: {why}"] if why else [])


@takes(SufficientSettings, "level", "both_signs")
class SufficientBody(AnswerBody, OutBody):
    """An answer, how much of it is kept, and against which baseline."""

    like: str | list[str] = Field(
        "words",
        description="The baseline that stands in for what is cut. words: the mean over this prompt with other words. "
        "resting: what the model writes in any text. A list of at least 8 prompts of the same template, or a file of "
        "them in the server's folder (a prompt a line, or JSON Lines): the mean over them.",
    )
    counterfactual: str | None = Field(
        None, description="Take as baseline what the model writes in this prompt, of as many tokens. Default: like."
    )


def sufficient(offered: Offered, body: SufficientBody, reporter: Reporter) -> Answer:
    """Which small circuit carries an answer by itself?

    Everything outside the circuit is set to the baseline, and the answer must keep most of its lead over it.
    """
    _require_place(offered, body)
    if body.counterfactual is not None and "like" in body.model_fields_set:
        raise KeyholeError("like and counterfactual are two baselines: give one of them.")
    like: Any = body.like
    if isinstance(like, str) and like not in _BASELINES:
        like = read_prompts(offered.folder.existing(like, (".txt", ".jsonl", ".json")))
    run = offered.ran(body, reporter).run
    circuit = run.sufficient(
        body.target,
        against=body.against,
        like=None if body.counterfactual is not None else like,
        counterfactual=body.counterfactual,
        settings=body.settings(SufficientSettings),
        end=body.end,
        progress=reporter.progress("Searching for the smallest circuit"),
    )
    return _found(offered, body, circuit, run, [])


def _require_place(offered: Offered, body: OutBody) -> None:
    """Refuse a file that cannot be written before any work is done."""
    if body.out is not None:
        offered.folder.new(body.out, SUFFIXES)


def _found(offered: Offered, body: AnswerBody, circuit: Circuit, run: Run, notes: list[str]) -> Answer:
    """A circuit as a tree and as its document; it is written where `out` says."""
    out: str | None = getattr(body, "out", None)
    if out is not None:
        offered.folder.save(out, SUFFIXES, lambda path: save(circuit, path))
    end = circuit.parameters.predicted[0][0]
    lines = [tree(circuit), *notes, f"likeliest next tokens: {run.next(end=end)}"]
    return Answer("\n".join(lines), parse_json(to_json(circuit)), () if out is None else (out,))


def tree(circuit: Circuit) -> str:
    """A circuit as a tree, as deep as fits some screens, and what stands at a branch."""
    text = circuit_text(circuit, depth=1)
    for depth in range(_DEEP, 1, -1):
        deeper = circuit_text(circuit, depth=depth)
        if deeper.count("\n") < _LINES:
            text = deeper
            break
    legend = f"A branch: {weight_label(circuit)}; dest, src: what a head looks for, and finds, through channels (ch)."
    return f"{text}\n{legend}"


# Does a circuit hold, and what do two share?


class VerifyBody(CircuitBody):
    """A circuit, and how it is verified."""

    mode: Mode = Field(
        "exact",
        description="What is computed anew after a removal: scores and what MLPs read (exact), one head (local), MLPs "
        "and one reader (chain), or everything that follows (global).",
    )
    draws: int = Field(3, ge=0, le=50, description="How many random controls per removal.")
    edges: bool = Field(True, description="Remove each edge, too, or only whole sides of firings.")
    seed: Seed = Field(0, description="Seed of the random controls.")
    top: int = Field(20, ge=1, description="How many removals are shown.")


def verify(offered: Offered, body: VerifyBody, reporter: Reporter) -> Answer:
    """Is a circuit as predicted, and does the answer need it?

    Each part is removed in the model's own pass, compared with random controls. Arithmetic: do attention and MLPs'
    writes fall as predicted? Causes: what does the answer lose without each part?
    """
    circuit = offered.circuit(body.circuit)
    model = offered.model_of(circuit, body.model, reporter)
    result = circuit.verify(
        model,
        mode=body.mode,
        draws=body.draws,
        edges=body.edges,
        seed=body.seed,
        progress=reporter.progress("Verifying"),
    )
    return Answer(as_text(result.report(body.top)), result.record())


@takes(CompareSettings, "members", "threshold", "mode", "draws", "seed")
class CompareBody(ToolBody):
    """Two circuits, and how they are compared."""

    a: str = Field(description="A circuit file (.json) in the server's folder.")
    b: str = Field(
        description="What it is compared with: another circuit file, or a published circuit, published:gpt2-ioi or "
        "published:gpt2-greater-than."
    )
    model: str | None = Field(None, description="The model that made them. Default: the one that a names.")


def compare(offered: Offered, body: CompareBody, reporter: Reporter) -> Answer:
    """What do two circuits share, and do their heads do the same?

    Compares the heads, edges and channels of both, and the signals of heads that both have. Against a published
    circuit: precision, recall and F1.
    """
    a = offered.circuit(body.a)
    b: Comparable = body.b if body.b.startswith(PREFIX) else offered.circuit(body.b)
    model = offered.model_of(a, body.model, reporter)
    settings = body.settings(CompareSettings)
    comparison = replace(compare_both(a, b, model=model, settings=settings, stage=reporter.stage), a=body.a, b=body.b)
    return Answer(str(comparison), comparison.record())
