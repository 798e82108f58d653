"""The laboratory's command about training: does attention become sparse?"""

import gc
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.laboratory.toys import lab, number
from keyhole.cli.options import DeviceOption, FiguresOption, JsonOption, ModelOption, read_kinds
from keyhole.errors import KeyholeError
from keyhole.files import require_folder

if TYPE_CHECKING:
    from keyhole.lab.training.curves import Over
    from keyhole.lab.training.emergence import Emergence
    from keyhole.models.model import Model

MEASURES = ("sparsity", "ambient", "refactor", "n_recon", "n_recon_refactor", "attention")


@dataclass(frozen=True)
class _Found:
    """What is shown: a training with its heads, in words, what its numbers are over, and what its steps count."""

    heads: "Emergence"
    about: str
    over: "Over"
    unit: str = "training step"


@lab.command()
def emergence(
    model: ModelOption = None,
    revisions: Annotated[
        str | None, typer.Option(help="Checkpoints of a hub model, first to last: step1000,step8000,step143000.")
    ] = None,
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
    chosen by role at the end. EleutherAI/pythia-160m runs the paper's own twelve heads; any other model of the hub
    needs its --revisions, and heads are chosen by role at the last of them.

    Examples:

        keyhole lab emergence --quick

        keyhole lab emergence --model EleutherAI/pythia-160m

        keyhole lab emergence --model EleutherAI/pythia-70m --revisions step1000,step16000,step143000
    """
    kinds = read_kinds(figures)
    from keyhole.figures.style import save_as
    from keyhole.lab.training.figures import emergence_figure

    if revisions is None:
        found = _of_trainings(model, out, quick=quick, seed=seed, device=device)
    elif model is None:
        raise KeyholeError("--revisions are those of a --model: name one.")
    elif quick:
        raise KeyholeError(
            "--quick shortens a training made here: with --revisions, give fewer of them or of --prompts."
        )
    else:
        parts = [part.strip() for part in revisions.split(",")]
        found = _of_revisions(model, parts, out, prompts=prompts, seed=seed, device=device)
    _show(found, json=json)
    drawn = emergence_figure(found.heads, over=found.over, unit=found.unit)
    written = save_as(drawn, out / "emergence", kinds)
    if not json:
        show.plain("\n".join(f"wrote {path}" for path in written))


def _show(found: _Found, *, json: bool) -> None:
    table, steps = _table(found.heads, found.over), found.heads.steps
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


def _table(found: "Emergence", over: "Over") -> dict[str, list[tuple[float, float, float]]]:
    from keyhole.lab.training.curves import curve

    return {name: [(one.mean, one.low, one.high) for one in curve(found, name, over=over)] for name in MEASURES}


def _of_trainings(model: str | None, out: Path, *, quick: bool, seed: int, device: str | None) -> _Found:
    from keyhole.reproduce.job import Job
    from keyhole.reproduce.svf.trainings import watched

    require_folder(out)
    with show.progress_bar("Training and measuring") as progress:
        seen = watched(Job(out / "emergence", model, quick, device, seed, progress))
    return _Found(seen.heads, seen.about, seen.over)


def _of_revisions(
    name: str, revisions: Sequence[str], out: Path, *, prompts: int, seed: int, device: str | None
) -> _Found:
    """Heads by role at the last checkpoint, followed over all of them."""
    from keyhole.lab.training.emergence import emergence as follow
    from keyhole.lab.training.roles import IOI_ROLES, find_roles
    from keyhole.models.loading.load import load
    from keyhole.reproduce.svt.ioi import single_tokens

    steps, unit = steps_of(revisions)
    require_folder(out)
    with show.progress(f"Loading {revisions[-1]}"):
        finished = load(name, revision=revisions[-1], device=device)
    examples = single_tokens(finished, prompts, seed)
    played = find_roles(finished, examples, IOI_ROLES, heads=3, required=False)
    if not played:
        raise KeyholeError(
            f"no head of {name} at {revisions[-1]} plays a role in indirect objects: none looks at a role's token "
            "clearly more than at the others. Choose a later checkpoint or a larger model."
        )
    del finished
    gc.collect()

    def checkpoints() -> Iterator[tuple[int, "Model"]]:
        for step, revision in zip(steps, revisions, strict=True):
            yield step, load(name, revision=revision, device=device)
            gc.collect()  # captured modules refer to each other, so that the last model would linger

    with show.progress("Following heads"):
        heads = follow(checkpoints(), [one.place for one in played], examples, seed=seed, source=name)
    told = ", ".join(f"{one.place.role} {one.place.head[0]}.{one.place.head[1]}" for one in played)
    counted = "" if unit == "training step" else " Not every revision tells its step: they are numbered as given."
    return _Found(heads, f"{name}, {len(revisions)} checkpoints, {prompts} prompts; {told}.{counted}", "places", unit)


def steps_of(revisions: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """Training steps of these revisions, or their numbers in the order given where one does not tell its step.

    >>> steps_of(["step1000", "step8000-tokens16B"]), steps_of(["step1000", "main"])
    (((1000, 8000), 'training step'), ((1, 2), 'checkpoint'))
    """
    if len(revisions) < 2 or not all(revisions):
        raise KeyholeError("give at least two --revisions, separated by commas: what emerges is a difference.")
    told = [re.findall(r"step[-_]?(\d+)", revision) for revision in revisions]
    if any(len(numbers) != 1 for numbers in told):
        return tuple(range(1, len(revisions) + 1)), "checkpoint"
    steps = tuple(int(numbers[0]) for numbers in told)
    if any(after <= before for before, after in pairwise(steps)):
        raise KeyholeError(f"the --revisions {', '.join(revisions)} are not in order: give them first to last.")
    return steps, "training step"
