"""Commands of the laboratory that look at trained models: emergence and the basis.

The laboratory's command about training: does attention become sparse?
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.from_record import from_records
from keyhole.cli.options import (
    DeviceOption,
    FiguresOption,
    JsonOption,
    ModelOption,
    ModelOptions,
    read_kinds,
)
from keyhole.cli.toys import lab, number
from keyhole.errors import KeyholeError
from keyhole.files import require_folder

if TYPE_CHECKING:
    from keyhole.lab.watched import Watched

_REVISIONS = "Checkpoints of --model, first to last: step1000,step8000, or all of a Pythia, or of a folder of folders."
MEASURES = ("sparsity", "ambient", "refactor", "n_recon", "n_recon_refactor", "attention")


@lab.command()
def emergence(
    model: ModelOption = None,
    revisions: Annotated[str | None, typer.Option(help=_REVISIONS)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed and few steps, to see that it runs.")] = False,
    prompts: Annotated[int, typer.Option(min=8, help="Indirect-object prompts, with --revisions.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="The first of the seeds; with --revisions, of the prompts.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the models trained here.")] = Path("emergence"),
    figures: FiguresOption = "png",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Does S(v) of heads with a role fall while a model is trained, and do rotated controls not?

    Without a model, eight small ones are trained here on indirect objects (minutes, kept in the folder) and heads are
    chosen by role at the end. EleutherAI/pythia-160m runs the paper's own twelve heads and prompt, at ten checkpoints
    or those of --revisions; any other model needs its --revisions, and heads are chosen by role at the last of them.
    The model may be a folder whose folders are the checkpoints. With 16 checkpoints or more, curves are averaged over
    8, as in the paper.

    Examples:

        keyhole lab emergence --quick

        keyhole lab emergence --model EleutherAI/pythia-160m --revisions all

        keyhole lab emergence --model EleutherAI/pythia-70m --revisions step1000,step16000,step143000
    """
    kinds = read_kinds(figures)
    from keyhole.figures.style import save_as
    from keyhole.lab.training_curves import emergence_figure

    if revisions is not None and quick:
        raise KeyholeError(
            "--quick shortens a training made here: with --revisions, give fewer of them or of --prompts."
        )
    from keyhole.lab.checkpoints import require_possible
    from keyhole.lab.watched import Source, watched

    require_possible(model, device, seed, revisions)
    require_folder(out)
    with show.progress_bar("Training and measuring" if model is None else "Following heads") as progress:
        source = Source(model, revisions, device, quick=quick, seed=seed, progress=progress)
        found = watched(source, out / "trained", prompts)
    _show(found, json=json)
    drawn = emergence_figure(found.heads, window=found.window, over=found.over, unit=found.unit)
    written = save_as(drawn, out / "emergence", kinds)
    if not json:
        show.plain("\n".join(f"wrote {path}" for path in written))


def _show(found: "Watched", *, json: bool) -> None:
    table, steps = _table(found), found.heads.steps
    if json:
        show.as_json({"about": found.about, "unit": found.unit, "steps": list(steps), **table})
        return
    show.plain(found.about)
    rows = [(f"{step:,}", *(number(table[name][i][0], 3) for name in MEASURES)) for i, step in enumerate(steps)]
    show.table((f">{found.unit}", ">S(v)", ">ambient", ">refactor", ">N_recon", ">refactored", ">attention"), rows)
    if any(math.isnan(mean) for name in MEASURES for mean, *_ in table[name]):
        show.plain(
            "note: - where these heads prefer no token: N_recon counts the channels of a relative attention above 0."
        )


def _table(found: "Watched") -> dict[str, list[tuple[float, float, float]]]:
    from keyhole.lab.training_curves import curve

    curves = {name: curve(found.heads, name, window=found.window, over=found.over) for name in MEASURES}
    return {name: [(one.mean, one.low, one.high) for one in points] for name, points in curves.items()}


# The laboratory's command about bases: how many channels does the answer need?


@lab.command()
@from_records()
def basis(
    task: Annotated[str, typer.Argument(help="A task whose prompts have a right and a wrong answer.")] = "ioi",
    *,
    source: ModelOptions,
    prompts: Annotated[int, typer.Option("--n", min=1, help="Prompts that the model answers rightly.")] = 16,
    edges: Annotated[int, typer.Option(min=1, help="Into queries and keys, of each prompt.")] = 32,
    draws: Annotated[int, typer.Option(min=1, help="Of random bases.")] = 4,
    seed: Annotated[int, typer.Option(help="Of prompts and random bases.")] = 0,
    json: JsonOption = False,
) -> None:
    """Does the answer need fewer channels in the singular basis than in other bases of the same heads?

    Of the edges into queries and keys with the largest shares, only the channels with the largest scores are kept,
    more and more of them, until the answer's logit difference stays within a tenth of the model's. Other bases:
    refactored (singular, turned at random), raw (the head's coordinates) and rotated (raw, turned at random). A prompt
    takes a third of a second on the organism, 20 seconds on SmolLM2 and minutes on larger models; after the first, it
    says how long the others will take.

    Examples:

        keyhole lab basis

        keyhole lab basis greater_than --n 8

        keyhole lab basis --model SmolLM2.gguf --n 8 --json
    """
    with show.progress("Importing torch and transformers"):
        from keyhole.lab.basis import basis_study

    loaded = source.load()
    with show.paced_bar("Withholding channels") as progress:
        study = basis_study(loaded, task, prompts, edges=edges, draws=draws, seed=seed, progress=progress)
    if json:
        show.as_json(study.record())
        return
    show.plain(study.summary + "\n")
    show.table(*study.cells)
    show.plain(study.verdict)
