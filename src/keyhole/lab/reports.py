"""What do the laboratory's commands say? Reports of toys, theorems and sparse heads.

What was measured, and what a dash in a table means.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from keyhole.brief import brief
from keyhole.lab.head_summary import Summary, pooled, summaries
from keyhole.lab.payload import Payload
from keyhole.lab.payload_features import diagonal_share, interaction, latent_feature, swaps
from keyhole.lab.sparse import SparseStudy
from keyhole.lab.svf import SVF, SVFSettings
from keyhole.lab.svf_alignment import Alignment, alignment
from keyhole.lab.svf_theorems import Check
from keyhole.report import Cell, Report, Reported, Section, Table

_UNFINISHED = 0.05  # relative distance of a gain from its target that only more training mends
_SWAP_SAMPLES = 10_240


@dataclass(frozen=True)
class Aligned(Reported):
    """Superposition toys with an attention head, a seed each: did singular vectors become features?"""

    __repr__ = brief

    settings: tuple[SVFSettings, ...]  # alike but for the seed
    alignments: tuple[Alignment, ...]

    def report(self) -> Report:
        """The smallest |cos| of a pair with its singular vectors, seed by seed."""
        columns = ("seed", ">by rank", ">assigned", ">subspace", "singular values")
        rows = [
            (
                *(str(settings.seed), found.by_rank.worst, found.by_assignment.worst, found.subspace.worst),
                " ".join(f"{value:.2f}" for value in found.S[: len(found.T)].tolist()),
            )
            for settings, found in zip(self.settings, self.alignments, strict=True)
        ]
        targets = " ".join(f"{t:g}" for t in self.alignments[0].T.tolist())
        return Report(
            "Singular vectors and features",
            f"The smallest |cos| of a pair with its singular vectors; T: {targets}",
            [Section("Seeds", [Table(columns, rows)]), Section("Notes", ["\n".join(self._notes())])],
            Table(columns, rows),
        )

    def _notes(self) -> list[str]:
        sizes, notes = self.settings[0], list[str]()
        if any(math.isnan(found.by_rank.worst + found.by_assignment.worst) for found in self.alignments):
            notes.append(
                f"- under by rank or assigned: a pair has no channel (the head has {sizes.H} dimensions for "
                f"{len(sizes.pairs)} pairs) or a dead feature."
            )
        if any(math.isnan(found.subspace.worst) for found in self.alignments):
            notes.append(
                f"- under subspace: the attended features span all {sizes.D} dimensions, in which any vector "
                "lies, or one of them is dead."
            )
        gains = [found.by_assignment.gain / found.T.abs() - 1 for found in self.alignments]
        off = max(float(gain.abs().nan_to_num(1.0).max()) for gain in gains)
        if off > _UNFINISHED:
            notes.append(f"a pair adds up to {off:.0%} more or less than its T: train for more steps.")
        return notes + list(dict.fromkeys(warning for found in self.alignments for warning in found.warnings))

    def record(self) -> dict[str, Any]:
        """Settings, both readings of lambda, and every seed's alignment."""
        first = self.settings[0]
        summed = first.lam * (first.N if first.recon_reduction == "mean" else 1)
        return {
            "settings": {name: value for name, value in asdict(first).items() if name != "seed"},
            "lambda": {"of a sum": summed, "of a mean": summed / first.N},
            "T": self.alignments[0].T.tolist(),
            "seeds": [
                {
                    "seed": settings.seed,
                    "by_rank": found.by_rank.worst,
                    "by_assignment": found.by_assignment.worst,
                    "subspace": found.subspace.worst,
                    "singular_values": found.S.tolist(),
                    "gain": found.by_assignment.gain.tolist(),
                    "sign": found.by_assignment.sign.tolist(),
                    "dead": list(found.dead),
                    "warnings": list(found.warnings),
                }
                for settings, found in zip(self.settings, self.alignments, strict=True)
            ],
        }


def aligned(models: list[SVF]) -> Aligned:
    """The alignment of trained toys that differ in their seeds alone."""
    return Aligned(tuple(model.settings for model in models), tuple(alignment(model) for model in models))


@dataclass(frozen=True)
class Retrieved:
    """One payload-retrieval head: what a contrast finds of its latents, and how far that moves its attention."""

    seed: int
    ranks: tuple[int, int]  # of the found features
    accuracy: float
    ceiling: float  # of the accuracy, where equal latents are ambiguous; NaN: latents never repeat
    both: float  # attention moved by swapping both features
    full: float  # by swapping whole keys
    random: float  # by swapping random subspaces
    diagonal: float  # share of the interaction on its diagonal


@dataclass(frozen=True)
class Retrievals(Reported):
    """Payload-retrieval heads with latents that are known, a seed each: does a contrast find them?"""

    r1: int
    r2: int
    d_head: int
    latents: str
    seeds: tuple[Retrieved, ...]

    def report(self) -> Report:
        """Ranks and moved attention, seed by seed."""
        columns = ("seed", "ranks", ">accuracy", ">ceiling", ">both", ">full", ">random", ">G diagonal")
        rows = [
            (
                *(str(cell.seed), "{}, {}".format(*cell.ranks), cell.accuracy, cell.ceiling),
                *(cell.both, cell.full, cell.random, cell.diagonal),
            )
            for cell in self.seeds
        ]
        text = "both, full, random: attention moved by swapping both features, whole keys, random subspaces"
        if self.latents != "discrete":
            text += (
                f"\nceiling: - because {self.latents} latents never repeat, so that no ambiguity limits the accuracy"
            )
        return Report(
            "Latents that are known",
            f"{self.latents} latents of rank {self.r1} and {self.r2} in a head of {self.d_head} dimensions",
            [Section("What a contrast finds", [Table(columns, rows), text])],
            Table(columns, rows),
        )

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def retrieved(cell: Payload, seed: int) -> Retrieved:
    """What a contrast finds in a trained head."""
    z1, z2 = latent_feature(cell, "z1"), latent_feature(cell, "z2")
    moved = swaps(cell, z1, z2, samples=_SWAP_SAMPLES)
    return Retrieved(
        seed=seed,
        ranks=(z1.rank, z2.rank),
        accuracy=cell.accuracy,
        ceiling=cell.ceiling,
        both=moved.both.shift,
        full=moved.full.shift,
        random=moved.both.random,
        diagonal=diagonal_share(interaction(cell)),
    )


@dataclass(frozen=True)
class Theorems(Reported):
    """Theorems, each measured on cases that were drawn."""

    checks: tuple[Check, ...]

    @property
    def hold(self) -> bool:
        """Do all of them?"""
        return all(check.holds for check in self.checks)

    def report(self) -> Report:
        """Every measure with its limit."""
        columns = ("theorem", "measured", ">worst", ">limit", "ok")
        rows = [
            (check.name, measure.name, f"{measure.worst:.1e}", f"{measure.limit:.0e}", "yes" if measure.holds else "NO")
            for check in self.checks
            for measure in check.measures
        ]
        cases = "\n".join(f"{c.name}: {c.applicable} of {c.drawn} cases meet its assumptions" for c in self.checks)
        summary = "All hold." if self.hold else "Not all hold."
        return Report("Theorems", summary, [Section("Measures", [Table(columns, rows), cases])], Table(columns, rows))

    def record(self) -> dict[str, Any]:
        """As plain data."""
        checks = [{**asdict(check), "holds": check.holds, "margin": check.margin} for check in self.checks]
        return {"checks": checks}


@dataclass(frozen=True)
class SparseHeads(Reported):
    """Over how many channels do scores of real heads split, on prompts of a task and on unrelated text?"""

    __repr__ = brief

    pooled: Mapping[tuple[str, str], Summary]  # all pairs of the heads that fire: by text, and whether they fire
    heads: tuple[Summary, ...]  # those that fire on the task's prompts, the sparsest first
    unrelated: str  # what the other text is

    def report(self, most: int = 15) -> Report:
        """All heads together, and those with the fewest channels."""
        numbers = (">pairs", ">N_recon", ">rotated", ">S(v)", ">rotated", ">slices", ">rotated")
        heads = [(head.name, *_shown(head)) for head in self.heads]
        needed = "none fires in enough prompts"
        if self.heads:
            needed = f"{mean(head.n_recon.mean for head in self.heads):.1f} channels"
        text = (
            f"mean over {len(heads)} firing heads: {needed}; rotated: the same scores in other rank-one pieces\n"
            f"unrelated: text of {self.unrelated}"
        )
        if any(math.isnan(value) for summary in self.pooled.values() for value in _numbers(summary).values()):
            text += "\n- where no such pair can be measured: take more --prompts."
        pooled_rows = [(*key, *_shown(summary)) for key, summary in self.pooled.items()]
        return Report(
            "Channels of firing heads",
            text,
            [
                Section("All heads", [Table(("text", "head", *numbers), pooled_rows)]),
                Section("Heads on the task's prompts", [Table(("head", *numbers), heads[:most])]),
            ],
            Table(("head", *numbers), heads),
        )

    def record(self) -> dict[str, Any]:
        """As plain data."""
        together = {", ".join(key): _numbers(summary) for key, summary in self.pooled.items()}
        return {"pooled": together, "heads": {head.name: _numbers(head) for head in self.heads}}


def sparse_heads(task: SparseStudy, other: SparseStudy, unrelated: str, least: int) -> SparseHeads:
    """The summaries of both texts; of single heads, those that fire in at least so many prompts."""
    together = {
        (name, "firing" if firing else "quiet"): pooled(study, firing=firing)
        for name, study in (("task", task), ("unrelated", other))
        for firing in (True, False)
    }
    heads = sorted(summaries(task, least=least), key=lambda head: head.n_recon.mean)
    return SparseHeads(together, tuple(heads), unrelated)


def _numbers(summary: Summary) -> dict[str, float]:
    names = ("n_recon", "n_tolerant", "n_rotated", "sparsity", "rotated", "slices", "slices_rotated")
    return {"pairs": summary.pairs, **{name: getattr(summary, name).mean for name in names}}


def _shown(summary: Summary) -> tuple[Cell, ...]:
    return tuple(value for name, value in _numbers(summary).items() if name != "n_tolerant")
