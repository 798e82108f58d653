"""What trace measures after a circuit is found, and whose names it shows.

What `keyhole trace` measures beside tracing: the options of it, which of them go together, and the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole import show
from keyhole.errors import KeyholeError
from keyhole.settings.fields import option
from keyhole.settings.measuring import LEVEL, PANEL, SUFFICIENT, SUFFICIENT_BOTH_SIGNS, SUFFICIENT_LEVEL

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit, Edge
    from keyhole.models.run import Run
    from keyhole.naming.record import Naming
    from keyhole.tracing.answers import Target


@dataclass(frozen=True)
class Baseline:
    """What stands in for writers that are taken away."""

    like: str | None = option(
        None,
        "The baseline that stands in for what is removed. FILE: the mean over its prompts, at least 8 of the "
        "same template, as plain text (a prompt a line) or JSON Lines, whose answers are tested, too. words: "
        "the mean over this prompt with other words. resting: what the model writes in any text. Default: "
        "words.",
        metavar="FILE|words|resting",
        panel=PANEL,
    )
    counterfactual: str | None = option(
        None,
        "Take as baseline what the model writes in this prompt, of as many tokens. Default: the baseline of --like.",
        panel=PANEL,
    )

    def options(self) -> dict[str, Any]:
        """As the library takes it."""
        from keyhole.tasks.files import read_prompts

        if self.like is not None and self.counterfactual is not None:
            raise KeyholeError("--like and --counterfactual are two baselines: give one of them.")
        like = self.like if self.like in (None, "words", "resting") else read_prompts(str(self.like))
        return {"like": like, "counterfactual": self.counterfactual}


@dataclass(frozen=True)
class Measuring(Baseline):
    """What is measured, and against which baseline."""

    text: Path | None = option(
        None,
        "Take as baseline of --effects and faithfulness what the model writes on average in this text: at "
        "least 8 lines, a paragraph a line. Default: the baseline of --like.",
        metavar="FILE",
        panel=PANEL,
    )
    effects: bool = option(
        False,
        "Measure what the answer loses without each token, node and edge, in a pass each, and the shares of edges.",
        panel=PANEL,
    )
    sufficient: bool = option(False, SUFFICIENT, panel=PANEL)
    level: float = option(LEVEL, SUFFICIENT_LEVEL, panel=PANEL)
    both_signs: bool = option(False, SUFFICIENT_BOTH_SIGNS, panel=PANEL)
    faithfulness: bool = option(True, "Measure how much of the answer the circuit carries, or do not.", panel=PANEL)

    def require(self, *, story: bool, tracing: bool) -> None:
        """Refuse options that make no sense together; `tracing`: some of tracing's were given."""
        options = {"--like": self.like, "--counterfactual": self.counterfactual, "--text": self.text}
        given = [name for name, value in options.items() if value is not None]
        if len(given) > 1:
            raise KeyholeError(f"{' and '.join(given[:2])} are two baselines: give one of them.")
        if self.text is not None and (story or self.sufficient):
            option = "--story" if story else "--sufficient"
            raise KeyholeError(f"--text is no baseline of {option}: give --like resting, or leave out {option}.")
        if (self.level, self.both_signs) != (LEVEL, False) and not self.sufficient:
            raise KeyholeError("--level and --both-signs are of circuits that suffice: add --sufficient.")
        if given and not (self.effects or self.sufficient or self.faithfulness or story):
            raise KeyholeError("with --no-faithfulness nothing is measured against a baseline: add --effects.")
        if not self.sufficient:
            return
        if story:
            raise KeyholeError("circuits that suffice have no influence, of which stories are: leave out --story.")
        if not self.faithfulness:
            raise KeyholeError("--sufficient searches by what is kept of the answer: leave out --no-faithfulness.")
        if tracing:
            raise KeyholeError(
                "--sufficient searches and does not trace: leave out --method, --metric, --tau, --keys, --first-token, "
                "--through and what belongs to them."
            )

    def options(self) -> dict[str, Any]:
        """The baseline as the library takes it."""
        baseline = super().options()
        if self.text is None:  # circuits that suffice and stories take no text
            return baseline
        from keyhole.faithfulness.baseline import read_paragraphs

        read_paragraphs(self.text)  # refuses it before a model is loaded
        return {**baseline, "text": self.text}


def search(run: Run, target: Target, against: list[str | int], wanted: Measuring, baseline: dict[str, Any]) -> Circuit:
    """The circuit that suffices."""
    with show.progress_bar("Searching") as progress:
        return run.sufficient(
            target,
            against=against or None,
            level=wanted.level,
            both_signs=wanted.both_signs,
            progress=progress,
            **baseline,
        )


def measure(circuit: Circuit, wanted: Measuring, baseline: dict[str, Any]) -> Circuit:
    """The circuit with what the options name; without any, with its faithfulness if that can be measured."""
    from keyhole.faithfulness.effects import unasked_faithfulness

    if wanted.effects or any(baseline.values()):
        parts = ["words", "nodes", "edges", "shares"] if wanted.effects else []
        parts += ["faithfulness"] if wanted.faithfulness else []
        with show.progress_bar("Measuring") as progress:
            return circuit.effects(what=parts, progress=progress, **baseline)  # type: ignore[arg-type]
    if not wanted.faithfulness:
        return circuit
    with show.progress_bar("Measuring faithfulness") as progress:
        circuit, why = unasked_faithfulness(circuit, progress=progress)
    if why:
        show.note(f"faithfulness was not measured: {why}")
    return circuit


# What --names means: a file of names, refused before any work is done if it is of another model.


def read(path: Path | None, every: bool, *, json: bool) -> Naming | None:
    """The names; None: none were given."""
    if path is None:
        if every:
            raise KeyholeError("--all-names says which of --names to show: give a file of names.")
        return None
    if json:
        raise KeyholeError("names are for texts and pages; with --json a circuit is as its file has it: leave one out.")
    from keyhole.naming.record import load_naming

    return load_naming(path)


def require(naming: Naming, run: Run) -> None:
    """Refuse names of other weights."""
    from keyhole.naming.attached import require_same_model

    require_same_model(naming, {"name": run.model.name, "fingerprint": run.model.fingerprint()})


def edges(circuit: Circuit, naming: Naming, every: bool) -> dict[Edge, str]:
    """The names of a circuit's edges."""
    from keyhole.naming.attached import edge_names

    return edge_names(circuit, naming, every=every)
