"""Commands of the laboratory that look at trained models: emergence, the basis, and how sparse heads are.

The laboratory's command about training: does attention become sparse?
"""

from pathlib import Path
from typing import Annotated

import typer

from keyhole import show
from keyhole.cli.bulk import answer
from keyhole.cli.from_record import from_records
from keyhole.cli.options import (
    DeviceOption,
    FiguresOption,
    JsonOption,
    ModelOption,
    ModelOptions,
    read_kinds,
)
from keyhole.cli.toys import lab
from keyhole.errors import KeyholeError
from keyhole.files import require_folder

_REVISIONS = (
    "Checkpoints of --model, first to last, such as step1000,step8000, or all. Default: those of the "
    "paper, for pythia-160m."
)


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
    answer(heads, [], json=json)
    written = save_as(heads.plot(), out / "emergence", kinds)
    if not json:
        show.plain("\n".join(f"wrote {path}" for path in written))


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
    answer(study, [], json=json)


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
    from keyhole.lab.head_summary import unrelated_text
    from keyhole.lab.reports import sparse_heads
    from keyhole.lab.sparse import sparse_study
    from keyhole.tasks.catalogue import examples

    loaded = source.load()
    texts = [example.text for example in examples("ioi", loaded, prompts, seed, design="mixed")]
    other, source_of_text = unrelated_text(loaded, texts, seed)
    studies = {}
    for name, given in (("task", texts), ("unrelated", other)):
        with show.progress_bar(f"Running {name}") as progress:
            studies[name] = sparse_study(loaded, given, name=name, seed=seed, progress=progress)
    heads = sparse_heads(studies["task"], studies["unrelated"], source_of_text, least=min(5, prompts))
    answer(heads, [], shown=heads.report(top), json=json)
