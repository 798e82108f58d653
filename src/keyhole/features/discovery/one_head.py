"""The features that one head matches on, and the token pairs on which they act."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head, brief, head_name
from keyhole.errors import KeyholeError
from keyhole.features.discovery.discovery import DiscoveryOptions, discover
from keyhole.features.discovery.features import Discovery
from keyhole.features.discovery.keys import Samples, View, attended, each_run, groups_of
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import Prompt
from keyhole.progress import Progress
from keyhole.qk.channels import check_head
from keyhole.report import Report, Reported, Section, Table

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class HeadSamples:
    """Every query of one head that does not rest, with the key that it attends to most."""

    __repr__ = brief

    layer: int
    head: int
    view: View
    samples: Samples
    prompt: Int[Tensor, "samples"]
    dest: Int[Tensor, "samples"]
    src: Int[Tensor, "samples"]  # of the most attended key
    top_key: Float[Tensor, "samples d_head"]
    query_tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]


@dataclass(frozen=True)
class TokenPair:
    """A query token and the key token it attends to most, over all prompts, as one feature weighs them."""

    query: str
    key: str
    count: int
    term: float  # mean of the feature's term on that key minus its term on the rest
    total: float  # share of the sum of these terms over all samples
    query_value: float  # mean source values: two negative ones match as well as two positive ones
    key_value: float
    prompt: int  # where the term is largest
    dest: int
    src: int


@dataclass(frozen=True)
class HeadFeatures(Reported):
    """The discovered features of one head, each with its token pairs."""

    __repr__ = brief

    data: HeadSamples
    discovery: Discovery
    pairs: tuple[tuple[TokenPair, ...], ...]  # one row per feature

    @property
    def head(self) -> Head:
        """Layer and head."""
        return self.data.layer, self.data.head

    def report(self) -> Report:
        """Every feature with its token pairs, those of several dimensions, and how far all of it can be trusted."""
        found = self.discovery
        rests = (
            f"shares of the gap: features {sum(f.share for f in found.features):.2f}, "
            f"between features {found.cross:.2f} ({found.between:.2f} between independent ones), "
            f"through means {found.mean:.2f}, outside the subspace {found.outside:.2f}"
        )
        large = Table(
            ("features", ">rank", ">share", ">error", ">dependence", ">p"),
            [
                (", ".join(map(str, s.members)), s.rank, s.share, s.share_error, s.dependence, s.p)
                for s in found.subspaces
                if s.rank > 1
            ],
        )
        return Report(
            f"Features of head {head_name(self.head)}",
            f"rank {found.rank} of {len(found.S)}, gap {found.gap:.2f} over {found.samples[1]} held-out queries",
            [
                Section("Features", [self._features(3), rests]),
                Section("Features of several dimensions, which above are determined only up to a rotation", [large]),
                Section("Notes", ["\n".join(found.warnings)]),
            ],
            self._features(None),
        )

    def _features(self, most: int | None) -> Table:
        columns = ("feature", ">share", ">error", ">corr", ">stable", "sure", "most telling (query→key, times)")
        rows = [
            (
                *(str(number), feature.share, feature.share_error, feature.correlation),
                min(feature.query.stability, feature.key.stability),
                "yes" if feature.identified else "no",
                ", ".join(f"{p.query.strip() or '·'}→{p.key.strip() or '·'} {p.count}" for p in pairs[:most]),
            )
            for number, (feature, pairs) in enumerate(zip(self.discovery.features, self.pairs, strict=True))
        ]
        return Table(columns, rows)

    def record(self) -> dict[str, Any]:
        """As plain data: features with the directions that read them, without samples."""
        found = self.discovery
        numbers = ("share", "share_error", "correlation", "coupling", "identified")
        features = [
            {
                **_fields(feature, numbers),
                **{name: _fields(getattr(feature, name), _SIDE) for name in ("query", "key")},
                "pairs": [asdict(pair) for pair in pairs],
            }
            for feature, pairs in zip(found.features, self.pairs, strict=True)
        ]
        return {
            "head": head_name(self.head),
            "view": asdict(self.data.view),
            **_fields(found, ("rank", "gap", "cross", "mean", "outside", "mean_energy", "between")),
            "subspaces": [_fields(subspace, _SUBSPACE) for subspace in found.subspaces],
            "features": features,
            "warnings": list(found.warnings),
        }


_SIDE = ("direction", "stability", "kurtosis", "kurtosis_error")
_SUBSPACE = ("members", "rank", "share", "share_error", "dependence", "p")


def _fields(record: object, names: Sequence[str]) -> dict[str, Any]:
    """Some attributes of a record; tensors as lists."""
    values = ((name, getattr(record, name)) for name in names)
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values}


def head_samples(
    model: "Model",
    prompts: Sequence[Prompt],
    head: Head,
    *,
    view: View | None = None,
    bos: bool | None = None,
    batch: int = 16,
    progress: Progress | None = None,
) -> HeadSamples:
    """What each query of one head attends to, over many prompts; memory is linear in the number of tokens."""
    view = view or View()
    groups = groups_of(model, prompts, bos)
    rows: list[tuple[Tensor, ...]] = []
    queries: list[str] = []
    keys: list[str] = []
    scaling = 1.0
    with exact_matmul():
        for number, run in each_run(model, prompts, bos=bos, batch=batch, progress=progress):
            layer, index = check_head(run, head)
            record = run.attention_run(layer)
            keys_of, scaling = attended(record, [index], view), record.rule.scaling
            at = keys_of.used[0].nonzero()[:, 0]
            vectors = [x[0, at].cpu() for x in (keys_of.q, keys_of.attended, keys_of.rest, keys_of.top_key)]
            dest, src = at.cpu(), keys_of.top[0, at].cpu()
            rows.append((*vectors, torch.full_like(dest, number), dest, src))
            queries += [run.tokens[t] for t in dest.tolist()]
            keys += [run.tokens[t] for t in src.tolist()]
    q, att, rest, top_key, prompt, dest, src = (torch.cat(column) for column in zip(*rows, strict=True))
    samples = Samples(q, att, rest, groups[prompt], scaling)
    return HeadSamples(*head, view, samples, prompt, dest, src, top_key, tuple(queries), tuple(keys))


def head_features(
    model: "Model",
    prompts: Sequence[Prompt],
    head: Head,
    *,
    view: View | None = None,
    bos: bool | None = None,
    show: int = 8,
    progress: Progress | None = None,
    **options: Unpack[DiscoveryOptions],
) -> HeadFeatures:
    """Find the features that one head matches on, and the `show` token pairs on which each acts most.

    Args:
        model: The model of the head.
        prompts: Texts or token ids.
        head: Layer and head.
        view: How attention is read. Default: `View()`.
        bos: Whether a beginning-of-sequence token stands first. Default: as the model has it.
        show: Token pairs that are kept of each feature.
        progress: Called with how many prompts are done, and of how many.
        **options: Fields of `DiscoverySettings`, such as `rank`.

    >>> import keyhole
    >>> from keyhole.tasks import filler
    >>> head_features(keyhole.load(), filler(60, 0), (1, 6), show=2, permutations=9).data.head
    6
    """
    data = head_samples(model, prompts, head, view=view, bos=bos, progress=progress)
    discovery = discover(data.samples, **options)
    return HeadFeatures(data, discovery, token_pairs(discovery, data, show=show))


def token_pairs(discovery: Discovery, data: HeadSamples, *, show: int = 8) -> tuple[tuple[TokenPair, ...], ...]:
    """The token pairs on which each feature acts: pairs of equal texts together, those with most of its term first."""
    if show < 1:
        raise KeyholeError(f"{show} pairs per feature cannot be shown: give a positive number.")
    queries = data.samples.q
    terms = discovery.split(queries, data.top_key).terms - discovery.split(queries, data.samples.rest).terms
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, both in enumerate(zip(data.query_tokens, data.key_tokens, strict=True)):
        places[both].append(i)
    values = discovery.query_sources(data.samples.q), discovery.key_sources(data.top_key)
    totals = torch.stack([terms[rows].sum(0) for rows in places.values()])
    texts = list(places)
    result = []
    for j in range(terms.shape[1]):
        best = totals[:, j].argsort(descending=True)[:show].tolist()
        pairs = [_pair(texts[b], places[texts[b]], j, terms, values=values, data=data) for b in best]
        result.append(tuple(pairs))
    return tuple(result)


def _pair(
    texts: tuple[str, str],
    rows: list[int],
    feature: int,
    terms: Tensor,
    *,
    values: tuple[Tensor, Tensor],
    data: HeadSamples,
) -> TokenPair:
    values_of_term = terms[rows, feature]
    example = rows[int(values_of_term.argmax())]
    return TokenPair(
        query=texts[0],
        key=texts[1],
        count=len(rows),
        term=float(values_of_term.mean()),
        total=float(values_of_term.sum() / terms[:, feature].sum()),
        query_value=float(values[0][rows, feature].mean()),
        key_value=float(values[1][rows, feature].mean()),
        prompt=int(data.prompt[example]),
        dest=int(data.dest[example]),
        src=int(data.src[example]),
    )
