"""Commands of the laboratory: toy models with known answers, and theorems."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keyhole import show
from keyhole.cli.bulk import answer
from keyhole.cli.help import Grouped
from keyhole.cli.options import JsonOption, Latents, Preset, QueryMode, Reduction

lab = typer.Typer(cls=Grouped, help="Toy models in which the truth is known, theorems, and the sparsity of real heads.")


@lab.command()
def svf(
    preset: Annotated[
        Preset,
        typer.Option(
            help="Settings of the training. fast: sum, lambda 20, 15,000 steps; paper: mean, lambda 4, 30,000 steps."
        ),
    ] = "fast",
    seeds: Annotated[int, typer.Option(min=1, help="How many models are trained, each with its own seed.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    pairs: Annotated[
        int,
        typer.Option(
            min=1, help="How many pairs of features attend to each other; their targets T fall from the first pair on."
        ),
    ] = 4,
    top: Annotated[float, typer.Option(help="Target score T of the first pair.")] = 24.0,
    step: Annotated[float, typer.Option(help="How much lower T is from one pair to the next.")] = 3.0,
    features: Annotated[int, typer.Option("--features", "-N", help="N: how many features there are.")] = 20,
    dims: Annotated[int, typer.Option("--dims", "-D", help="D: how many dimensions a token has.")] = 10,
    head: Annotated[int, typer.Option("--head-dims", "-H", help="H: how many dimensions the head has.")] = 10,
    context: Annotated[int, typer.Option("--context", "-m", help="m: how many tokens a context has.")] = 4,
    p: Annotated[float, typer.Option(help="Probability that a feature is present, between 0 and 1.")] = 0.52,
    lam: Annotated[
        float | None, typer.Option("--lambda", help="Weight of the attention loss. Default: the preset's.")
    ] = None,
    errors: Annotated[
        Reduction | None,
        typer.Option(help="How errors of reconstruction are added over features. Default: the preset's."),
    ] = None,
    queries: Annotated[
        QueryMode, typer.Option(help="Which token attends: the last of its context (last), or a separate one (indep).")
    ] = "last",
    steps: Annotated[int | None, typer.Option(help="How many training steps. Default: the preset's.")] = None,
    device: Annotated[str, typer.Option(help="Device to train on: cpu, or cuda for large sweeps.")] = "cpu",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the training, which goes on from it after a stop. Default: none."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Do singular vectors of a head become features? Trains the superposition toy with an attention head.

    Examples:

        keyhole lab svf

        keyhole lab svf --pairs 1 --top 1 --seeds 3

        keyhole lab svf --preset paper --p 0.038 --seeds 40 --device cuda --checkpoint sweep
    """
    from keyhole.lab.reports import aligned
    from keyhole.lab.svf import SVFSettings, declining_pairs
    from keyhole.lab.svf_train import train

    changes: dict[str, Any] = {"N": features, "D": dims, "H": head, "m": context, "p": p, "query_mode": queries}
    given = (("lam", lam), ("steps", steps), ("recon_reduction", errors))
    changes |= {name: value for name, value in given if value is not None}
    changes["pairs"] = declining_pairs(pairs, top, step)
    configs = [getattr(SVFSettings, preset)(seed=seed + n, **changes) for n in range(seeds)]
    with show.progress_bar("Training") as progress:
        trained = train(configs, device=device, checkpoint=checkpoint, progress=progress)
    answer(aligned(trained), [], json=json)


@lab.command()
def payload(
    r1: Annotated[int, typer.Argument(help="Rank of the first latent.")] = 3,
    r2: Annotated[int, typer.Argument(help="Rank of the second latent.")] = 5,
    d_head: Annotated[int, typer.Option(help="How many dimensions the head has.")] = 16,
    latents: Annotated[
        Latents,
        typer.Option(
            help="What latents are: signs (discrete), normal numbers (gaussian), or points on spheres (sphere)."
        ),
    ] = "discrete",
    preset: Annotated[
        Preset, typer.Option(help="Settings of the training. fast: 4,000 steps; paper: early stopping.")
    ] = "fast",
    seeds: Annotated[int, typer.Option(min=1, help="How many models are trained, each with its own seed.")] = 3,
    steps: Annotated[int | None, typer.Option(help="How many training steps at most. Default: the preset's.")] = None,
    json: JsonOption = False,
) -> None:
    """Does a contrast find latents that are known? Trains payload-retrieval heads and looks for their features.

    Examples:

        keyhole lab payload

        keyhole lab payload 3 4 --d-head 8 --latents gaussian

        keyhole lab payload 3 5 --d-head 16 --preset paper --seeds 1
    """
    from keyhole.lab.payload import PayloadSettings, train
    from keyhole.lab.reports import Retrievals, retrieved

    make = getattr(PayloadSettings, preset)
    changes: dict[str, Any] = {"latents": latents} | ({} if steps is None else {"max_steps": steps})
    with show.progress_bar("Training") as progress:
        cells = train([make(r1, r2, d_head, seed=s, **changes) for s in range(seeds)], progress=progress)
    heads = tuple(retrieved(cell, number) for number, cell in enumerate(cells))
    answer(Retrievals(r1, r2, d_head, latents, heads), [], json=json)


@lab.command()
def theorems(
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds cases are drawn with. Default: 3, and 4 for Theorem 3.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Do the theorems on singular vectors and features hold? Theorems 1 to 4 and Lemma 3, with margins.

    Examples:

        keyhole lab theorems

        keyhole lab theorems --json
    """
    from keyhole.lab.reports import Theorems
    from keyhole.lab.svf_alignment import theorem_4
    from keyhole.lab.svf_theorems import lemma_3, theorem_1, theorem_2, theorem_3

    with show.progress("Checking"):
        drawn = () if seeds is None else (range(seeds),)
        checks = (theorem_1, theorem_2, lemma_3, theorem_3, theorem_4)
        measured = Theorems(tuple(check(*drawn) for check in checks))
    answer(measured, [], json=json)
    raise typer.Exit(0 if measured.hold else 1)
