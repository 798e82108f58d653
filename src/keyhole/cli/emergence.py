"""The laboratory's command about training: does attention become sparse?"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.options import DeviceOption, JsonOption, ModelOption
from keyhole.cli.toys import lab
from keyhole.errors import KeyholeError
from keyhole.models.load import load

if TYPE_CHECKING:
    from keyhole.lab.emergence import Emergence
    from keyhole.lab.emergence_curves import Over
    from keyhole.models.model import Model

MEASURES = ("sparsity", "ambient", "refactor", "n_recon", "n_recon_refactor", "attention")


@lab.command()
def emergence(
    model: ModelOption = None,
    revisions: Annotated[
        str | None, typer.Option(help="Checkpoints of a hub model, first to last: step1000,step8000,step143000.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed and few steps, to see that it runs.")] = False,
    prompts: Annotated[int, typer.Option(min=2, help="Indirect-object prompts, with --revisions.")] = 12,
    seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the models trained here.")] = Path("emergence"),
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Does S(v) of heads with a role fall while a model is trained, and do rotated controls not?

    Without a model, three small ones are trained here on indirect objects (minutes, kept in the folder) and heads are
    chosen by role at the end. EleutherAI/pythia-160m runs the paper's own twelve heads; any other model of the hub
    needs its --revisions.

    Examples:

        keyhole lab emergence --quick

        keyhole lab emergence --model EleutherAI/pythia-160m

        keyhole lab emergence --model EleutherAI/pythia-70m --revisions step1000,step16000,step143000
    """
    from keyhole.figures import save
    from keyhole.figures.emergence import emergence_figure

    out.mkdir(parents=True, exist_ok=True)
    over: Over = "places"
    if revisions is not None:
        if model is None:
            raise KeyholeError("--revisions are those of a --model: name one.")
        found, about = _of_revisions(model, [part for part in revisions.split(",") if part], prompts, device), model
    else:
        found, about, over = _of_trainings(model, out, quick=quick, seed=seed, device=device)
    path = save(emergence_figure(found, over=over), out / "emergence.png")
    table = _table(found, over)
    if json:
        show.as_json({"about": about, "steps": list(found.steps), **table})
        return
    show.plain(about)
    rows = [(f"{step:,}", *(f"{table[name][i][0]:.3f}" for name in MEASURES)) for i, step in enumerate(found.steps)]
    show.table((">step", ">S(v)", ">ambient", ">refactor", ">N_recon", ">refactored", ">attention"), rows)
    show.plain(f"wrote {path}")


def _table(found: "Emergence", over: "Over") -> dict[str, list[tuple[float, float, float]]]:
    from keyhole.lab.emergence_curves import curve

    return {name: [(one.mean, one.low, one.high) for one in curve(found, name, over=over)] for name in MEASURES}


def _of_trainings(
    model: str | None, out: Path, *, quick: bool, seed: int, device: str | None
) -> tuple["Emergence", str, "Over"]:
    from keyhole.lab.emergence_trainings import watched
    from keyhole.lab.job import Job

    with show.progress_bar("Training and measuring") as progress:
        seen = watched(Job(out / "emergence", model, quick, device, seed, progress))
    return seen.heads, seen.about, seen.over


def _of_revisions(name: str, revisions: Sequence[str], prompts: int, device: str | None) -> "Emergence":
    """Heads by role at the last checkpoint, followed over all of them."""
    from keyhole.lab.emergence import emergence as follow
    from keyhole.lab.emergence_roles import find_roles
    from keyhole.models.prompts import one_token_words
    from keyhole.tasks import ioi
    from keyhole.tasks.words import NAMES

    if len(revisions) < 2:
        raise KeyholeError("give at least two --revisions: what emerges is a difference.")
    with show.progress(f"Loading {revisions[-1]}"):
        finished = load(name, revision=revisions[-1], device=device)
    examples = ioi(prompts, names=one_token_words(finished, NAMES))
    places = [one.place for one in find_roles(finished, examples, required=False)]
    if not places:
        raise KeyholeError(
            f"no head of {name} at {revisions[-1]} plays a role in indirect objects: choose a later one."
        )
    del finished

    def checkpoints() -> Iterator[tuple[int, "Model"]]:
        for number, revision in enumerate(revisions):
            digits = "".join(ch for ch in revision if ch.isdecimal())
            yield int(digits) if digits else number, load(name, revision=revision, device=device)

    with show.progress("Following heads"):
        return follow(checkpoints(), places, examples, source=name)
