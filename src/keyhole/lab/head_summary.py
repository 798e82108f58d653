"""How many channels do heads need, over a model, compared with unrelated prompts?

What do the tables of a sparse study say? Means with intervals over prompts, quantiles, and claims counted by head.

Pairs of one prompt are not independent, so intervals are bootstraps over prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.lab.sparse import HeadPairs, SparseStudy, matched_text
from keyhole.models.tokens import Prompt, encode
from keyhole.tasks.corpus import knows_tasks_alone, passages
from keyhole.tasks.knowledge import greater_than
from keyhole.tasks.things import boxes, lists

if TYPE_CHECKING:
    from keyhole.models.model import Model

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_DRAWS = 1_000
_MOST_SETS = 300  # of which agreement is measured: it compares all with all


@dataclass(frozen=True)
class Spread:
    """How one number is distributed over pairs. Pairs where it is not defined are left out."""

    count: int
    mean: float
    low: float  # 95 % interval of the mean, bootstrap over prompts; NaN where there is one prompt
    high: float
    quantiles: tuple[float, ...]  # at QUANTILES

    @property
    def median(self) -> float:
        """The middle value."""
        return self.quantiles[len(QUANTILES) // 2]

    def __str__(self) -> str:
        return f"{self.mean:.1f} [{self.low:.1f}, {self.high:.1f}]"


@dataclass(frozen=True)
class Summary:
    """One head, or several pooled, in numbers."""

    name: str
    firing: bool
    pairs: int
    n_recon: Spread
    n_tolerant: Spread
    n_rotated: Spread
    fewer: Spread  # N_recon - rotated N_recon, pair by pair: negative where the singular basis needs fewer
    sparsity: Spread
    rotated: Spread
    sparser: Spread  # S(v) - rotated S(v), pair by pair
    below_rotated: Spread  # share of pairs with S(v) below that in refactored bases
    below_ambient: Spread  # share of pairs with S(v) below the ambient control
    slices: Spread
    slices_rotated: Spread
    slices_fewer: Spread  # slices - rotated slices, pair by pair


@dataclass(frozen=True)
class Agreement:
    """How alike are the sets of slices of two pairs, from different prompts? Mean |A and B| / |A or B|."""

    firing: float  # both fire
    quiet: float  # neither does
    between: float  # one fires
    chance: float  # both fire, but the slices of one are reshuffled
    chance_quiet: float  # neither does, but the slices of one are reshuffled
    rotated: tuple[float, ...]  # both fire, in each refactored basis: residuals that are alike use alike slices in any
    rotated_quiet: tuple[float, ...]  # neither does


def spread(values: Float[Tensor, "pair"], prompts: Int[Tensor, "pair"], *, seed: int = 0) -> Spread:
    """Mean, interval and quantiles of the finite values.

    >>> spread(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([0, 1, 1])).mean
    2.0
    """
    defined = values.isfinite()
    values, prompts = values[defined].double(), prompts[defined]
    nan = float("nan")
    if not len(values):
        return Spread(0, nan, nan, nan, (nan,) * len(QUANTILES))
    size = int(prompts.max()) + 1
    sums = torch.zeros(size, dtype=torch.float64).index_add(0, prompts, values)
    counts = prompts.bincount(minlength=size)
    sums, counts = sums[counts > 0], counts[counts > 0]
    low = high = nan  # one prompt, drawn again and again, would look certain
    if len(sums) > 1:
        drawn = torch.randint(len(sums), (_DRAWS, len(sums)), generator=torch.Generator().manual_seed(seed))
        means = sums[drawn].sum(-1) / counts[drawn].sum(-1)
        low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    # the data point nearest from below: counts stay whole numbers
    at = values.sort().values[[int(q * (len(values) - 1)) for q in QUANTILES]]
    return Spread(len(values), float(values.mean()), low, high, tuple(at.tolist()))


def summarise(tables: HeadPairs | Sequence[HeadPairs], name: str = "") -> Summary:
    """The numbers of one head, or of several pooled (every pair counts once)."""
    tables = [tables] if isinstance(tables, HeadPairs) else list(tables)
    if not tables or len({table.firing for table in tables}) > 1:
        raise KeyholeError("a summary needs tables that are all of firing pairs, or all of quiet ones: give some.")
    prompts = torch.cat([table.pairs[:, 0] for table in tables])

    def of(number: Callable[[HeadPairs], Tensor]) -> Spread:
        return spread(torch.cat([number(table) for table in tables]), prompts)

    return Summary(
        name=name or ", ".join(f"{table.layer}.{table.head}" for table in tables),
        firing=tables[0].firing,
        pairs=len(prompts),
        n_recon=of(lambda t: t.n_recon),
        n_tolerant=of(lambda t: t.n_tolerant),
        n_rotated=of(lambda t: t.n_rotated),
        fewer=of(lambda t: t.n_recon - t.n_rotated),
        sparsity=of(lambda t: t.sparsity),
        rotated=of(lambda t: t.rotated),
        sparser=of(lambda t: t.sparsity - t.rotated),
        below_rotated=of(lambda t: _below(t.sparsity, t.rotated)),
        below_ambient=of(lambda t: _below(t.sparsity, torch.full_like(t.sparsity, t.ambient))),
        slices=of(lambda t: t.slices),
        slices_rotated=of(lambda t: t.slices_rotated),
        slices_fewer=of(lambda t: t.slices - t.slices_rotated),
    )


def summaries(study: SparseStudy, *, firing: bool = True, least: int = 5) -> tuple[Summary, ...]:
    """Every head that fires in at least `least` prompts, those with most firing pairs first.

    Args:
        study: Heads on some prompts.
        firing: Sum up pairs that fire, or others.
        least: Prompts in which a head must fire.

    >>> import keyhole
    >>> from keyhole.lab.sparse import sparse_study
    >>> text = "When Mary and John went to the store, John gave a drink to"
    >>> len(summaries(sparse_study(keyhole.load(), [text], heads=[(3, 1)], draws=1), least=1))
    1
    """
    return tuple(summarise(study.of(head, firing=firing)) for head in study.firing_heads(least))


def pooled(study: SparseStudy, *, firing: bool = True, heads: Sequence[Head] | None = None) -> Summary:
    """All pairs of these heads together; of all that fire at all, if none are given.

    Args:
        study: What `sparse_study` returns.
        firing: Take the firing pairs, or the others.
        heads: The heads. Default: all that fire.

    >>> import keyhole
    >>> from keyhole.lab.sparse import sparse_study
    >>> text = "When Mary and John went to the store, John gave a drink to"
    >>> pooled(sparse_study(keyhole.load(), [text], heads=[(3, 1)], draws=1)).pairs > 0
    True
    """
    chosen = study.firing_heads(least=1) if heads is None else tuple(heads)
    return summarise([study.of(head, firing=firing) for head in chosen], name=f"{len(chosen)} heads")


def agreement(study: SparseStudy, head: Head, *, seed: int = 0) -> Agreement:
    """Does the head use the same slices over prompts, and others when it does not fire?"""
    g = torch.Generator().manual_seed(seed)
    tables = [study.of(head), study.of(head, firing=False)]
    chosen = [torch.randperm(len(table), generator=g)[:_MOST_SETS] for table in tables]
    fire, quiet = (table.used[at] for table, at in zip(tables, chosen, strict=True))
    p, q = (table.pairs[at, 0] for table, at in zip(tables, chosen, strict=True))
    mixed, mixed_quiet = (sets.gather(-1, torch.rand(sets.shape, generator=g).argsort(-1)) for sets in (fire, quiet))
    rotated, rotated_quiet = (
        tuple(_alike(sets, sets, prompt_numbers, prompt_numbers) for sets in table.used_rotated[at].unbind(1))
        for table, at, prompt_numbers in zip(tables, chosen, (p, q), strict=True)
    )
    return Agreement(
        firing=_alike(fire, fire, p, p),
        quiet=_alike(quiet, quiet, q, q),
        between=_alike(fire, quiet, p, q),
        chance=_alike(fire, mixed, p, p),
        chance_quiet=_alike(quiet, mixed_quiet, q, q),
        rotated=rotated,
        rotated_quiet=rotated_quiet,
    )


def _alike(
    a: Bool[Tensor, "one slice"], b: Bool[Tensor, "other slice"], p: Int[Tensor, "one"], q: Int[Tensor, "other"]
) -> float:
    """Mean Jaccard similarity over pairs of sets from different prompts; NaN if there are none."""
    a, b = a.double(), b.double()
    both = a @ b.T
    similarity = both / (a.sum(-1)[:, None] + b.sum(-1) - both)
    return float(similarity[p[:, None] != q].mean())


def _below(values: Tensor, control: Tensor) -> Tensor:
    """1 where below, 0 where not, NaN where either is."""
    return torch.where((values - control).isfinite(), (values < control).double(), float("nan"))


# Which text has nothing to do with a task's names, and is as long as its prompts?


def unrelated_text(model: "Model", like: Sequence[Prompt], seed: int = 0) -> tuple[list[tuple[int, ...]], str]:
    """Pieces as long as these prompts, and what they are: how many keys a query sees changes every number.

    Real prose; for the organism, which knows the words of its tasks alone, prompts of those tasks that have no names.
    """
    if not knows_tasks_alone(model):
        return passages(
            model, [len(encode(model, example, None).ids) for example in like], seed
        ), "Jane Austen's novels"
    others = zip(*(make(2 * len(like), seed) for make in (boxes, lists, greater_than)), strict=True)
    texts = [f"{example.text}{example.continuation}" for three in others for example in three]
    return matched_text(model, texts, like), "the organism's other tasks, without names, as it knows no other words"
