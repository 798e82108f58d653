"""Commands of the laboratory that look at trained models: emergence, the basis, and how sparse heads are.

The laboratory's command about training: does attention become sparse?
"""

import math
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

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

_REVISIONS = (
    "Checkpoints of --model, first to last, such as step1000,step8000, or all. Default: those of the "
    "paper, for pythia-160m."
)
MEASURES = ("sparsity", "ambient", "refactor", "n_recon", "n_recon_refactor", "attention")


@lab.command()
def emergence(
    model: ModelOption = None,
    revisions: Annotated[str | None, typer.Option(help=_REVISIONS)] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train one seed for a few steps, to see that it runs.")
    ] = False,
    prompts: Annotated[int, typer.Option(min=8, help="How many indirect-object prompts, with --revisions.")] = 32,
    seed: Annotated[
        int, typer.Option(min=0, help="The first of the seeds; with --revisions, the seed of the prompts.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the trained models.")] = Path("emergence"),
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
        heads = watched(source, out / "trained", prompts)
    _show(heads, json=json)
    drawn = emergence_figure(heads.heads, window=heads.window, over=heads.over, unit=heads.unit)
    written = save_as(drawn, out / "emergence", kinds)
    if not json:
        show.plain("\n".join(f"wrote {path}" for path in written))


def _show(heads: "Watched", *, json: bool) -> None:
    table, steps = _table(heads), heads.heads.steps
    if json:
        show.as_json({"about": heads.about, "unit": heads.unit, "steps": list(steps), **table})
        return
    show.plain(heads.about)
    rows = [(f"{step:,}", *(number(table[name][i][0], 3) for name in MEASURES)) for i, step in enumerate(steps)]
    show.table((f">{heads.unit}", ">S(v)", ">ambient", ">refactor", ">N_recon", ">refactored", ">attention"), rows)
    if any(math.isnan(mean) for name in MEASURES for mean, *_ in table[name]):
        show.plain(
            "note: - where these heads prefer no token: N_recon counts the channels of a relative attention above 0."
        )


def _table(heads: "Watched") -> dict[str, list[tuple[float, float, float]]]:
    from keyhole.lab.training_curves import curve

    curves = {name: curve(heads.heads, name, window=heads.window, over=heads.over) for name in MEASURES}
    return {name: [(point.mean, point.low, point.high) for point in points] for name, points in curves.items()}


# The laboratory's command about bases: how many channels does the answer need?


@lab.command()
@from_records()
def basis(
    task: Annotated[str, typer.Argument(help="A task whose prompts have a right and a wrong answer.")] = "ioi",
    *,
    source: ModelOptions,
    prompts: Annotated[
        int, typer.Option("--n", min=1, help="How many prompts, all answered correctly by the model.")
    ] = 16,
    edges: Annotated[int, typer.Option(min=1, help="How many edges into queries and keys of each prompt.")] = 32,
    draws: Annotated[int, typer.Option(min=1, help="How many random bases to compare with.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of prompts and random bases.")] = 0,
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


# The laboratory's command about real heads: over how many channels do their scores split?


@lab.command()
@from_records()
def sparse(
    *,
    source: ModelOptions,
    prompts: Annotated[
        int, typer.Option(min=2, help="How many indirect-object prompts, and how many passages of unrelated text.")
    ] = 60,
    top: Annotated[int, typer.Option(min=1, help="How many heads are shown.")] = 15,
    seed: Annotated[int, typer.Option(help="Seed of prompts and rotations.")] = 0,
    json: JsonOption = False,
) -> None:
    """How many channels does a head need where it fires, on task prompts and on unrelated text?

    That text is passages of Jane Austen's novels, which `make .cache/prose.txt` fetches; for the organism, which knows
    no other words, prompts of its other tasks.

    Examples:

        keyhole lab sparse

        keyhole lab sparse --model SmolLM2.gguf --prompts 30
    """
    from keyhole.lab.head_summary import pooled, summaries, unrelated_text
    from keyhole.lab.sparse import sparse_study
    from keyhole.tasks.catalogue import examples

    loaded = source.load()
    texts = [example.text for example in examples("ioi", loaded, prompts, seed, design="mixed")]
    studies = {}
    other, source_of_text = unrelated_text(loaded, texts, seed)
    for name, given in (("task", texts), ("unrelated", other)):
        with show.progress_bar(f"Running {name}") as progress:
            studies[name] = sparse_study(loaded, given, name=name, seed=seed, progress=progress)
    lines = [
        (name, "firing" if firing else "quiet", pooled(s, firing=firing))
        for name, s in studies.items()
        for firing in (True, False)
    ]
    heads = sorted(summaries(studies["task"], least=min(5, prompts)), key=lambda summary: summary.n_recon.mean)
    if json:
        show.as_json(
            {"pooled": {f"{n}, {f}": _numbers(s) for n, f, s in lines}, "heads": {s.name: _numbers(s) for s in heads}}
        )
        return
    columns = ("", "", ">pairs", ">N_recon", ">rotated", ">S(v)", ">rotated", ">slices", ">rotated")
    show.table(columns, [(name, firing, *_cells(summary)) for name, firing, summary in lines])
    show.table(("head", "", *columns[2:]), [(summary.name, "firing", *_cells(summary)) for summary in heads[:top]])
    needed = "none fires in enough prompts"
    if heads:
        needed = f"{mean(summary.n_recon.mean for summary in heads):.1f} channels"
    show.plain(
        f"mean over {len(heads)} firing heads: {needed}; rotated: the same scores in other rank-one pieces\n"
        f"unrelated: text of {source_of_text}"
    )
    if any(math.isnan(value) for *_, summary in lines for value in _numbers(summary).values()):
        show.plain("note: - where no such pair can be measured: take more --prompts.")


def _numbers(summary: Any) -> dict[str, float]:
    names = ("n_recon", "n_tolerant", "n_rotated", "sparsity", "rotated", "slices", "slices_rotated")
    return {"pairs": summary.pairs, **{name: getattr(summary, name).mean for name in names}}


def _cells(summary: Any) -> tuple[str, ...]:
    numbers = _numbers(summary)
    return (
        str(summary.pairs),
        number(numbers["n_recon"], 1),
        number(numbers["n_rotated"], 1),
        number(numbers["sparsity"], 2),
        number(numbers["rotated"], 2),
        number(numbers["slices"], 1),
        number(numbers["slices_rotated"], 1),
    )
