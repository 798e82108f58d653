"""Commands that verify a circuit and look for backups.

The command that proves: does a circuit hold when its signals and causes are taken away?
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.bulk import OutOption, answer, require_places
from keyhole.cli.from_record import from_records
from keyhole.cli.measuring import Baseline
from keyhole.cli.options import CircuitModel, JsonOption, Mode, read_heads
from keyhole.report.report import Section
from keyhole.settings.measuring import PairSettings

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.faithfulness.backup_record import Backups
    from keyhole.models.model import Model


@from_records()
def verify(
    file: Annotated[Path, typer.Argument(help="A circuit file (.json).")],
    *,
    source: CircuitModel,
    mode: Annotated[
        Mode,
        typer.Option(
            help="What is computed anew after a removal: scores and what MLPs read (exact), one head (local), MLPs and "
            "one reader (chain), or everything that follows (global)."
        ),
    ] = "exact",
    draws: Annotated[int, typer.Option(min=0, help="How many random controls per removal.")] = 3,
    sides_only: Annotated[
        bool, typer.Option("--sides-only", help="Remove whole sides of firings only, not single edges.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many removals are shown.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random controls.")] = 0,
    backups: Annotated[
        bool, typer.Option("--backups", help="Remove each head together with its backups, too; see `keyhole backups`.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Is a circuit as predicted, and does the answer need it? Each part is removed in the model's own pass.

    Arithmetic: do attention and MLPs' writes fall as predicted? Causes: what does the answer lose without each part,
    compared with what it loses without controls? The largest effects are shown, of either sign.

    exact: a firing's signals, and what is left of an MLP's write without its causes. chain: what that changes in each
    reader of the MLP, one at a time. global: everything downstream is free, and nothing is promised. Exits with 1 if a
    measured value differs from the predicted one. Controls of signals are random channels (--seed), those of MLPs other
    writers of the nearest norms.

    It says first how long it will take. What has the largest influence is removed first: Ctrl-C ends it, shows what is
    finished, and exits with 130.

    Examples:

        keyhole verify mary.json

        keyhole verify mary.json --mode chain

        keyhole verify mary.json --mode global --draws 10 --json

        keyhole verify mary.json --sides-only --backups
    """
    from keyhole.circuits.files import load_circuit
    from keyhole.faithfulness.verification import verify as verify_circuit

    circuit = load_circuit(file)
    loaded = source.load(model_named(circuit, source.model))
    with show.paced_bar("Verifying", every=15.0) as progress:
        result = verify_circuit(
            circuit,
            loaded,
            mode=mode,
            draws=draws,
            edges=not sides_only,
            seed=seed,
            progress=progress,
        )
    joint = _joint(circuit, loaded, seed) if backups and not result.stopped else None
    if json:
        show.as_json(result.record() | ({} if joint is None else {"backups": joint.record()}))
    else:
        show.report(result.report(top))
        if joint is not None:
            heading = "Backups: what does the answer lose without a head and those that take over?"
            show.report(Section(heading, [joint.verdict, *joint.joint.parts]))
    stopped = result.stopped or (joint is not None and joint.stopped)
    raise typer.Exit(130 if stopped else 0 if result.agrees else 1)


def _joint(circuit: Circuit, model: Model, seed: int) -> Backups:
    """Heads removed with their backups, at the usual baseline."""
    from keyhole.faithfulness.backups import backups as measure

    with show.paced_bar("Removing pairs", every=15.0) as progress:
        return measure(circuit, model, settings=PairSettings(seed=seed), progress=progress)


def model_named(circuit: Circuit, given: str | None) -> str | None:
    """The model that a circuit names, unless another place to load it from is given."""
    from keyhole.models.organism import source_named

    return source_named(str(circuit.model.get("name"))) if given is None else given


# The command that removes heads in pairs: which heads take over when another is gone?


@from_records(named=read_heads)
def backups(
    file: Annotated[Path, typer.Argument(help="A circuit file (.json).")],
    *,
    source: CircuitModel,
    settings: PairSettings,
    baseline: Baseline,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Which heads take over when another is removed? Heads are removed in pairs, compared with random pairs.

    A head whose effect grows once another is gone is its backup: it wakes (it writes something else), counts more (it
    writes the same), or holds the answer back less. A removed head writes its baseline at all tokens (--like,
    --counterfactual). Heads with backups are removed together with them. In each head, what the softmax hands to other
    keys is predicted and measured.

    It says first how long it will take. Ctrl-C ends it, shows the heads that are finished, and exits with 130.

    Examples:

        keyhole backups mary.json

        keyhole backups mary.json --like ioi.jsonl --first 4 --out backups.html

        keyhole backups mary.json --head 3.6 --like resting
    """
    places, beside = require_places(out), baseline.options()
    from keyhole.circuits.files import load_circuit

    circuit = load_circuit(file)
    loaded = source.load(model_named(circuit, source.model))
    from keyhole.faithfulness.backups import backups as measure

    with show.paced_bar("Removing pairs", every=15.0) as progress:
        result = measure(circuit, loaded, settings=settings, progress=progress, **beside)
    answer(result, places, json=json)
    if result.stopped is not None:
        raise typer.Exit(130)
