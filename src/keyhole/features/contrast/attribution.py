"""How much of a row of attention logits goes through which feature? An exactly additive split of the query.

    sequential    q_1 = P_1 q,  q_2 = P_2 (q - q_1), ...       (the paper's; q_2 may reach back into span(U_1))
    gram_schmidt  q_i = P_i' q with P_i' on what U_i adds to U_1 ... U_{i-1}

Either way q = q_1 + q_2 + ... + q_rest, so the logits scaling q.k_s split likewise; what overlaps counts to the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head, brief
from keyhole.errors import KeyholeError
from keyhole.features.contrast.finding import Feature
from keyhole.features.contrast.subspace import principal_cosines, union
from keyhole.features.contrast.sums import Frame, check_frame, turns_at
from keyhole.models.numbers import exact_matmul
from keyhole.qk.channels import check_head

if TYPE_CHECKING:
    from keyhole.models.run import Run

Method = Literal["sequential", "gram_schmidt"]


@dataclass(frozen=True)
class Attribution:
    """One row of logits, before softcap and softmax, over features and the unexplained rest."""

    __repr__ = brief

    head: Head
    dest: int
    first: int  # the first visible key, where the row begins
    names: tuple[str, ...]
    parts: Float[Tensor, "features pos"]
    rest: Float[Tensor, "pos"]
    logits: Float[Tensor, "pos"]
    error: float  # of the sum, relative to the largest logit

    @property
    def explained(self) -> float:
        """1 - |rest|^2 / |logits|^2, as in the paper."""
        return 1 - float(self.rest.square().sum() / self.logits.square().sum())

    @property
    def explained_differences(self) -> float:
        """The same about the row's means: what is common to all keys does not move attention.

        Of all keys of the row, and squared: not the share of the gap between right and other keys (`gap`).
        """
        rest, logits = self.rest - self.rest.mean(), self.logits - self.logits.mean()
        return 1 - float(rest.square().sum() / logits.square().sum())

    def gap(self, positive: Sequence[int], negative: Sequence[int]) -> tuple[float, float]:
        """Mean logit of some keys (positions) minus that of others: in all, and through the features."""
        plus, minus = ([at - self.first for at in keys] for keys in (positive, negative))
        both = torch.stack([self.logits, self.logits - self.rest])
        whole, through = (both[:, plus].mean(1) - both[:, minus].mean(1)).tolist()
        return whole, through


def attribute(
    run: "Run",
    features: Sequence[Feature],
    dest: int | str = -1,
    *,
    frame: Frame = "post_rope",
    method: Method = "sequential",
) -> Attribution:
    """Split one row of a head's logits over an ordered list of its features.

    Args:
        run: A run of the model.
        features: Features of one head, the first of which takes its part first.
        dest: The query, as a position or a text. Default: the last token.
        frame: Coordinates in which the features were found.
        method: Whether a part is projected after earlier parts are taken away (sequential), or onto bases made
            orthogonal.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, find_features, order_contrast
    >>> model = keyhole.load()
    >>> features = find_features(collect(model, order_contrast(model, 40, n_boxes=4)), permutations=20)
    >>> attribute(model.run("Mary gave John a book"), [features.of((1, 6))]).names
    ('boxes by order',)
    """
    check_frame(frame)
    if not features:
        raise KeyholeError("there are no features to attribute to: give at least one.")
    head = features[0].head
    if any(feature.head != head for feature in features):
        raise KeyholeError("the features belong to different heads: a row of logits belongs to one.")
    layer, index = check_head(run, head)
    at = run.position(dest, "dest")
    record = run.attention_run(layer)
    with exact_matmul():
        first = int(record.first[at])
        q = record.q[index, at].double()
        k = record.k[index // (record.q.shape[0] // record.k.shape[0]), first : at + 1].double()
        turned = record.rotary is not None and frame != "post_rope"
        turns = turns_at(record.rotary, torch.tensor(at)) if turned and record.rotary is not None else None
        parts = split_query(q if turns is None else turns.into(q[None])[0], features, method)
        parts = parts if turns is None else turns.back(parts)
        scaling = record.rule.scaling
        split, left = scaling * (parts @ k.T), scaling * (k @ (q - parts.sum(0)))
        logits = record.scores([index], [at])[0, 0, first : at + 1].double()
        error = float((split.sum(0) + left - logits).abs().max() / logits.abs().max().clamp_min(1e-30))
    names = tuple(feature.name for feature in features)
    return Attribution(head, at, first, names, split, left, logits, error)


def split_query(
    q: Float[Tensor, "d_head"], features: Sequence[Feature], method: Method = "sequential"
) -> Float[Tensor, "features d_head"]:
    """The parts of a query, in its frame; what is left of it is the rest."""
    if method not in ("sequential", "gram_schmidt"):
        raise KeyholeError(f"there is no method {method!r}: choose sequential or gram_schmidt.")
    parts: list[Tensor] = []
    before: list[Tensor] = []
    for feature in features:
        U = feature.U.to(q)
        if method == "sequential":
            parts.append(U @ (U.T @ (q - sum(parts, torch.zeros_like(q)))))
        else:
            both = union([*before, U]).to(q)
            parts.append(both @ (both.T @ q) - sum(parts, torch.zeros_like(q)))
        before.append(U)
    return torch.stack(parts)


@dataclass(frozen=True)
class Angles:
    """Cosines of the principal angles between two features of a head, in query and in key space."""

    names: tuple[str, str]
    query: tuple[float, ...]
    key: tuple[float, ...]


def angles(features: Sequence[Feature]) -> tuple[Angles, ...]:
    """How much do features overlap, pair by pair? 1: a shared direction, 0: orthogonal.

    Args:
        features: Features of one head.

    >>> import torch
    >>> bases = {"a": torch.eye(3)[:, :2], "b": torch.eye(3)[:, 1:2]}
    >>> some = [Feature(name, (0, 0), basis, basis, torch.ones(basis.shape[1])) for name, basis in bases.items()]
    >>> [pair.names for pair in angles(some)]
    [('a', 'b')]
    """
    pairs = []
    for i, a in enumerate(features):
        for b in features[i + 1 :]:
            query, key = principal_cosines(a.U, b.U), principal_cosines(a.V, b.V)
            pairs.append(Angles((a.name, b.name), tuple(query.tolist()), tuple(key.tolist())))
    return tuple(pairs)
