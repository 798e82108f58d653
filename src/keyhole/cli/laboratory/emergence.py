"""The laboratory's command about training: does attention become sparse?"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.laboratory.toys import lab, number
from keyhole.cli.options import DeviceOption, FiguresOption, JsonOption, ModelOption, read_kinds
from keyhole.errors import KeyholeError
from keyhole.files import require_folder

if TYPE_CHECKING:
    from keyhole.lab.training.watched import Watched

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
    from keyhole.lab.training.figures import emergence_figure

    if revisions is not None and quick:
        raise KeyholeError(
            "--quick shortens a training made here: with --revisions, give fewer of them or of --prompts."
        )
    from keyhole.lab.training.checkpoints import require_possible
    from keyhole.lab.training.watched import Source, watched

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
    from keyhole.lab.training.curves import curve

    curves = {name: curve(found.heads, name, window=found.window, over=found.over) for name in MEASURES}
    return {name: [(one.mean, one.low, one.high) for one in points] for name, points in curves.items()}
