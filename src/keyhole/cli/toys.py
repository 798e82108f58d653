"""Commands of the laboratory: toy models with known answers, and theorems."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.help import Grouped
from keyhole.cli.options import (
    JsonOption,
    Latents,
    Preset,
    QueryMode,
    Reduction,
)

if TYPE_CHECKING:
    from keyhole.lab.svf import SVFSettings
    from keyhole.lab.svf_alignment import Alignment

_UNFINISHED = 0.05  # relative distance of a gain from its target that only more training mends

lab = typer.Typer(cls=Grouped, help="Toy models in which the truth is known, theorems, and the sparsity of real heads.")


def number(value: float, decimals: int) -> str:
    """A cell of a table: what could not be measured is a dash, and a line below the table says why."""
    return "-" if math.isnan(value) else f"{value:.{decimals}f}"


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
    from keyhole.lab.svf import SVFSettings, declining_pairs
    from keyhole.lab.svf_alignment import alignment
    from keyhole.lab.svf_train import train

    changes: dict[str, Any] = {"N": features, "D": dims, "H": head, "m": context, "p": p, "query_mode": queries}
    given = (("lam", lam), ("steps", steps), ("recon_reduction", errors))
    changes |= {name: value for name, value in given if value is not None}
    changes["pairs"] = declining_pairs(pairs, top, step)
    configs = [getattr(SVFSettings, preset)(seed=seed + n, **changes) for n in range(seeds)]
    with show.progress_bar("Training") as progress:
        trained = train(configs, device=device, checkpoint=checkpoint, progress=progress)
    alignments = [alignment(model) for model in trained]
    if json:
        show.as_json(_aligned_record(configs, alignments))
    else:
        _show_aligned(configs, alignments)


def _aligned_record(configs: "Sequence[SVFSettings]", alignments: "Sequence[Alignment]") -> dict[str, Any]:
    """Settings, both readings of lambda, and every seed's alignment."""
    settings = {name: value for name, value in asdict(configs[0]).items() if name != "seed"}
    summed = configs[0].lam * (configs[0].N if configs[0].recon_reduction == "mean" else 1)
    return {
        "settings": settings,
        "lambda": {"of a sum": summed, "of a mean": summed / configs[0].N},
        "T": alignments[0].T.tolist(),
        "seeds": [
            {
                "seed": config.seed,
                "by_rank": alignment.by_rank.worst,
                "by_assignment": alignment.by_assignment.worst,
                "subspace": alignment.subspace.worst,
                "singular_values": alignment.S.tolist(),
                "gain": alignment.by_assignment.gain.tolist(),
                "sign": alignment.by_assignment.sign.tolist(),
                "dead": list(alignment.dead),
                "warnings": list(alignment.warnings),
            }
            for config, alignment in zip(configs, alignments, strict=True)
        ],
    }


def _show_aligned(configs: "Sequence[SVFSettings]", alignments: "Sequence[Alignment]") -> None:
    rows = [
        (
            str(config.seed),
            number(alignment.by_rank.worst, 4),
            number(alignment.by_assignment.worst, 4),
            number(alignment.subspace.worst, 4),
            " ".join(f"{value:.2f}" for value in alignment.S[: len(alignment.T)].tolist()),
        )
        for config, alignment in zip(configs, alignments, strict=True)
    ]
    show.table(("seed", ">by rank", ">assigned", ">subspace", "singular values"), rows)
    targets = " ".join(f"{t:g}" for t in alignments[0].T.tolist())
    show.plain(f"smallest |cos| of a pair with its singular vectors; T: {targets}")
    sizes = configs[0]
    worst = [value for each in alignments for value in (each.by_assignment.worst, each.by_rank.worst)]
    if any(map(math.isnan, worst)):
        show.plain(
            f"note: - under by rank or assigned: a pair has no channel (the head has {sizes.H} dimensions for "
            f"{len(sizes.pairs)} pairs) or a dead feature."
        )
    if any(math.isnan(alignment.subspace.worst) for alignment in alignments):
        show.plain(
            f"note: - under subspace: the attended features span all {sizes.D} dimensions, in which any vector "
            "lies, or one of them is dead."
        )
    gains = [each.by_assignment.gain / each.T.abs() - 1 for each in alignments]
    off = max(float(gain.abs().nan_to_num(1.0).max()) for gain in gains)
    if off > _UNFINISHED:
        show.plain(f"note: a pair adds up to {off:.0%} more or less than its T: train for more steps.")
    for warning in dict.fromkeys(warning for alignment in alignments for warning in alignment.warnings):
        show.plain(f"note: {warning}")


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
    from keyhole.lab.payload_features import diagonal_share, interaction, latent_feature, swaps

    make = getattr(PayloadSettings, preset)
    changes: dict[str, Any] = {"latents": latents} | ({} if steps is None else {"max_steps": steps})
    with show.progress_bar("Training") as progress:
        cells = train([make(r1, r2, d_head, seed=s, **changes) for s in range(seeds)], progress=progress)
    rows, record = [], []
    for seed, cell in enumerate(cells):
        z1, z2 = latent_feature(cell, "z1"), latent_feature(cell, "z2")
        moved = swaps(cell, z1, z2, samples=10_240)
        share = diagonal_share(interaction(cell))
        numbers = (cell.accuracy, cell.ceiling, moved.both.shift, moved.full.shift, moved.both.random, share)
        rows.append((str(seed), f"{z1.rank}, {z2.rank}", *(number(value, 3) for value in numbers)))
        names = ("accuracy", "ceiling", "both", "full", "random", "diagonal")
        record.append({"seed": seed, "ranks": [z1.rank, z2.rank], **dict(zip(names, numbers, strict=True))})
    if json:
        show.as_json({"r1": r1, "r2": r2, "d_head": d_head, "latents": latents, "seeds": record})
        return
    show.table(("seed", "ranks", ">accuracy", ">ceiling", ">both", ">full", ">random", ">G diagonal"), rows)
    show.plain("both, full, random: attention moved by swapping both features, whole keys, random subspaces")
    if latents != "discrete":
        show.plain(f"ceiling: - because {latents} latents never repeat, so that no ambiguity limits the accuracy")


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
    from keyhole.lab.svf_alignment import theorem_4
    from keyhole.lab.svf_theorems import lemma_3, theorem_1, theorem_2, theorem_3

    with show.progress("Checking"):
        drawn = () if seeds is None else (range(seeds),)
        checks = [check(*drawn) for check in (theorem_1, theorem_2, lemma_3, theorem_3, theorem_4)]
    if json:
        show.as_json({"checks": [{**asdict(check), "holds": check.holds, "margin": check.margin} for check in checks]})
    else:
        rows = [
            (check.name, measure.name, f"{measure.worst:.1e}", f"{measure.limit:.0e}", "yes" if measure.holds else "NO")
            for check in checks
            for measure in check.measures
        ]
        show.table(("theorem", "measured", ">worst", ">limit", "ok"), rows)
        show.plain("\n".join(f"{c.name}: {c.applicable} of {c.drawn} cases meet its assumptions" for c in checks))
    raise typer.Exit(0 if all(check.holds for check in checks) else 1)
