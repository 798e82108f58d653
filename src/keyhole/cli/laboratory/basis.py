"""The laboratory's command about bases: how many channels does the answer need?"""

from typing import Annotated

import typer

from keyhole import show
from keyhole.cli.laboratory.toys import lab
from keyhole.cli.options import DeviceOption, DtypeOption, JsonOption, ModelOption, RevisionOption, load_model


@lab.command()
def basis(
    task: Annotated[str, typer.Argument(help="A task whose prompts have a right and a wrong answer.")] = "ioi",
    model: ModelOption = None,
    prompts: Annotated[int, typer.Option("--n", min=1, help="Prompts that the model answers rightly.")] = 16,
    edges: Annotated[int, typer.Option(min=1, help="Into queries and keys, of each prompt.")] = 32,
    draws: Annotated[int, typer.Option(min=1, help="Of random bases.")] = 4,
    seed: Annotated[int, typer.Option(help="Of prompts and random bases.")] = 0,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
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
        from keyhole.lab.heads.basis import basis_study

    loaded = load_model(model, revision, dtype, device)
    with show.paced_bar("Withholding channels") as progress:
        study = basis_study(loaded, task, prompts, edges=edges, draws=draws, seed=seed, progress=progress)
    if json:
        show.as_json(study.record())
        return
    show.plain(study.summary + "\n")
    show.table(*study.cells)
    show.plain(study.verdict)
