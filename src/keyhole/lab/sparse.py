"""Do few singular channels carry attention, in a real model over many prompts? One row per pair, head by head.

    relative attention = sum_k c_k;  N_recon = fewest c_k that reach it;  S(v) = mean(|c|)^2 / mean(c^2)
    score = sum_k f_k;  the slices of a pair are the fewest f_k without which nothing is left (`qk.slices`)

Both counts are small wherever the sum is: a total near zero is reached by one term, whatever the basis. So a small
count speaks for the singular basis only beside the count of the same pair in rotated bases, where the total is the
same (`n_rotated`), and firing pairs, whose totals are large, may well need more channels than quiet ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.errors import KeyholeError
from keyhole.lab.channel_parts import Coordinates, Rule, joined, layer_coordinates
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import Prompt, encode
from keyhole.progress import Progress
from keyhole.qk.channels import n_recon_each, sparsity_each
from keyhole.qk.controls import ambient_sparsity, refactored, rotations, slice_sets
from keyhole.qk.omega import Basis, omega
from keyhole.settings.fields import chosen as settings_with
from keyhole.settings.fields import option

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

_COLUMNS = (
    *("pairs", "attention", "relative", "n_recon", "n_tolerant", "n_rotated"),
    *("sparsity", "rotated", "used", "used_rotated"),
)


@dataclass(frozen=True)
class HeadPairs:
    """The pairs of one head that fire (or some that do not), one row each."""

    layer: int
    head: int
    firing: bool
    channels: int  # of the head: what N_recon is out of, and 1/channels the least S(v)
    pairs: Int[Tensor, "pair 3"]  # prompt, dest, src
    attention: Float[Tensor, "pair"]
    relative: Float[Tensor, "pair"]  # relative attention; NaN at the only visible key
    n_recon: Float[Tensor, "pair"]  # NaN where relative attention is not positive
    n_tolerant: Float[Tensor, "pair"]  # of `tolerance` times the relative attention
    n_rotated: Float[Tensor, "pair"]  # N_recon in refactored bases, mean over draws
    sparsity: Float[Tensor, "pair"]
    rotated: Float[Tensor, "pair"]  # S(v) in refactored bases, mean over draws
    ambient: float  # expected S(v) in ambient rotations
    used: Bool[Tensor, "pair slice"]  # which slices the score used
    used_rotated: Bool[Tensor, "pair draw slice"]  # which it would use in refactored bases

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def slices(self) -> Float[Tensor, "pair"]:
        """How many slices each pair used."""
        return self.used.sum(-1).double()

    @property
    def slices_rotated(self) -> Float[Tensor, "pair"]:
        """How many each pair would use in refactored bases, mean over draws."""
        return self.used_rotated.sum(-1).double().mean(-1)

    @property
    def usage(self) -> Float[Tensor, "slice"]:
        """In which share of the pairs each slice is used; strongest singular value first."""
        return self.used.double().mean(0)


@dataclass(frozen=True)
class SparseStudy:
    """Every chosen head on one set of prompts."""

    model: str
    name: str  # of the prompts
    prompts: int
    rule: Rule
    tolerance: float
    draws: int
    tables: tuple[HeadPairs, ...]  # of each head first the firing pairs, then quiet ones
    error: float  # of the rebuilt scores, relative to the largest

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads measured, in order."""
        return tuple((table.layer, table.head) for table in self.tables[::2])

    def of(self, head: Head, *, firing: bool = True) -> HeadPairs:
        """The pairs of one head."""
        for table in self.tables:
            if (table.layer, table.head, table.firing) == (*head, firing):
                return table
        raise KeyholeError(f"head {head_name(head)} is not in this study: it measured {len(self.heads)} others.")

    def firing_heads(self, least: int = 5) -> tuple[Head, ...]:
        """Heads that fire in at least this many prompts, those with most firing pairs first.

        Pairs of one prompt are no independent observations, so that many of them make no head measurable.
        """
        firing = {(table.layer, table.head): table for table in self.tables if table.firing}
        enough = [head for head, table in firing.items() if len(set(table.pairs[:, 0].tolist())) >= least]
        return tuple(sorted(enough, key=lambda head: -len(firing[head])))


@dataclass(frozen=True, kw_only=True)
class SparseSettings:
    """Which pairs are counted, and against what."""

    rule: Rule = option(Rule(), "Which pairs count as firing, how many others are drawn, and in which channels.")
    tolerance: float = option(0.95, "Share of the relative attention that the tolerant count must reach.")
    draws: int = option(8, "Rotations that every pair is compared with.")
    seed: int = option(0, "Seed of the rotations and of the pairs that do not fire.")
    batch: int = option(16, "Prompts of one pass; runs are forgotten batch by batch.")


class SparseOptions(TypedDict, total=False):
    """The fields of `SparseSettings`, as keywords."""

    rule: Rule
    tolerance: float
    draws: int
    seed: int
    batch: int


def sparse_study(
    model: "Model",
    prompts: Sequence[Prompt],
    *,
    heads: Sequence[Head] | None = None,
    name: str = "prompts",
    settings: SparseSettings | None = None,
    progress: Progress | None = None,
    **options: Unpack[SparseOptions],
) -> SparseStudy:
    """How many channels does each head use, where it fires and where it does not?

    Beside all firing pairs, some that do not fire are drawn (`rule.quiet` per prompt and head). The same rotations
    serve every pair. What stays of a run is a row per pair.

    Args:
        model: The model that the prompts are run on.
        prompts: Texts or token ids.
        heads: The heads to measure, as (layer, head). Default: all.
        name: What the prompts are called in tables and figures.
        settings: Which pairs are counted, and against what. Default: those of `SparseSettings`.
        progress: Called with how many prompts are done, and of how many.
        **options: Fields of `SparseSettings`, such as draws=2.

    >>> from keyhole import load
    >>> study = sparse_study(load(), ["When Mary and John went to the store, John gave a drink to"], heads=[(3, 1)])
    >>> study.heads, len(study.of((3, 1))) > 0
    (((3, 1),), True)
    """
    how = settings_with(settings, SparseSettings, options)
    rule, batch = how.rule, max(1, how.batch)
    chosen = _check(model, prompts, heads, how)
    generators: dict[int, dict[int, torch.Generator]] = {}
    for layer, head in chosen:
        generators.setdefault(layer, {})[head] = torch.Generator().manual_seed(how.seed)
    measure = _measurer(model, how)
    parts: dict[tuple[Head, bool], list[HeadPairs]] = {
        (head, firing): [] for head in chosen for firing in (True, False)
    }
    worst = 0.0
    for start in range(0, len(prompts), batch):
        runs = model.run_many(prompts[start : start + batch])
        for layer, of_heads in generators.items():
            coordinates, error = _layer_pairs(runs, layer, of_heads, rule, first=start)
            worst = max(worst, error)
            for (head, firing), pairs in coordinates.items():
                parts[(layer, head), firing].append(measure((layer, head), firing, pairs))
        if progress is not None:
            progress(start + len(runs), len(prompts))
    tables = tuple(_joined_tables(tables) for tables in parts.values())
    if not any(len(table) for table in tables if table.firing):
        raise KeyholeError(
            f"none of these {len(chosen)} heads fires in these {len(prompts)} prompts: no weight beyond the first "
            f"token reaches {rule.threshold}. Lower the threshold, or choose other heads or prompts."
        )
    return SparseStudy(model.name, name, len(prompts), rule, how.tolerance, how.draws, tables, worst)


def _layer_pairs(
    runs: Sequence["Run"], layer: int, generators: Mapping[int, torch.Generator], rule: Rule, *, first: int
) -> tuple[dict[tuple[int, bool], Coordinates], float]:
    """The pairs of each head of a layer over some runs, by (head, firing)."""
    with exact_matmul():
        each = [layer_coordinates(run, layer, generators, rule, prompt=first + i) for i, run in enumerate(runs)]
    both = {
        (head, side == 0): joined([coordinates[head][side] for coordinates, _ in each])
        for head in generators
        for side in (0, 1)
    }
    return both, max(error for _, error in each)


def _measurer(model: "Model", how: SparseSettings) -> Callable[[Head, bool, Coordinates], HeadPairs]:
    """What turns coordinates of one head's pairs into a table; rotations and controls are made once."""
    rule = how.rule
    turns = cache(lambda n: rotations(n, how.draws, how.seed))
    ambient = cache(lambda head: ambient_sparsity(spectrum(head, rule.relative), how.seed))

    @cache
    def spectrum(head: Head, basis: Basis) -> Tensor:
        om = omega(model, head[0], basis)
        return om.sigma[head[1], : int(om.rank[head[1]])].cpu()

    def rotated(head: Head, basis: Basis, a: Tensor, b: Tensor) -> Tensor:
        return refactored(a, b, spectrum(head, basis), turns(a.shape[-1]))

    def measure(head: Head, firing: bool, c: Coordinates) -> HeadPairs:
        terms = (c.a * c.b).double()
        total = terms.sum(-1) + c.rest.double()
        other = rotated(head, rule.relative, c.a, c.b)
        other_terms = rotated(head, rule.slices, c.slice_a, c.slice_B).transpose(0, 1)
        return HeadPairs(
            layer=head[0],
            head=head[1],
            firing=firing,
            channels=terms.shape[-1],
            pairs=c.pairs,
            attention=c.attention.double(),
            relative=total,
            n_recon=n_recon_each(terms, total),
            n_tolerant=n_recon_each(terms, total, how.tolerance),
            n_rotated=n_recon_each(other, total.expand(how.draws, -1)).mean(0),
            sparsity=sparsity_each(terms),
            rotated=sparsity_each(other).mean(0),
            ambient=ambient(head),
            used=slice_sets(c.slice_a * c.slice_B),
            used_rotated=slice_sets(other_terms.flatten(0, 1)).view(other_terms.shape),
        )

    return measure


def _joined_tables(parts: Sequence[HeadPairs]) -> HeadPairs:
    columns: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return replace(parts[0], **columns)


def matched_text(model: "Model", text: Sequence[str], like: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Other text in pieces as long as these prompts, as token ids: how many keys a query sees changes every number.

    The texts are put one after another, each piece from the start of a text, and cut.

    Args:
        model: Its tokenizer counts the tokens.
        text: The other texts.
        like: Prompts, of which each piece has the length of one.

    >>> import keyhole
    >>> from keyhole.tasks import filler
    >>> [len(piece) for piece in matched_text(keyhole.load(), filler(9), ["Mary gave John a book"])]
    [6]
    """
    lengths = [len(encode(model, prompt, None).ids) for prompt in like]
    pieces: list[tuple[int, ...]] = []
    at = 0
    for length in lengths:
        piece = ""
        ids: tuple[int, ...] = ()
        while len(ids) < length:
            if at >= len(text):
                raise KeyholeError(
                    f"the text is used up after {len(pieces)} of {len(lengths)} pieces: give more, or fewer prompts."
                )
            piece, at = f"{piece} {text[at]}".strip(), at + 1
            ids = encode(model, piece, None).ids
        pieces.append(ids[:length])
    return pieces


def _check(model: "Model", prompts: Sequence[Prompt], heads: Sequence[Head] | None, how: SparseSettings) -> list[Head]:
    if isinstance(prompts, str) or not len(prompts):
        raise KeyholeError("there are no prompts to measure: give a list of at least one.")
    if not 0 < how.rule.threshold <= 1 or not 0 < how.tolerance <= 1:
        raise KeyholeError(
            f"threshold {how.rule.threshold} and tolerance {how.tolerance} must be above 0 and at most 1."
        )
    if how.draws < 1 or how.rule.quiet < 1:
        raise KeyholeError("at least one rotation and one quiet pair are needed: raise `draws` and `quiet` to 1.")
    exist = [(layer, head) for layer in model.attention_layers for head in range(model.dims.heads)]
    chosen = exist if heads is None else [(int(layer), int(head)) for layer, head in dict.fromkeys(heads)]
    for layer, head in chosen:
        if (layer, head) not in exist:
            raise KeyholeError(
                f"there is no head {layer}.{head}: {model.name} has heads 0 to {model.dims.heads - 1} in layers "
                f"{model.attention_layers[0]} to {model.attention_layers[-1]}."
            )
    if not chosen:
        raise KeyholeError("no head was chosen: give at least one, or heads=None for all.")
    return sorted(chosen)
