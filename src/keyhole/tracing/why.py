"""Why does a head attend here? One firing or those of a layer, and a signal as a vector of the residual stream.

Why does a head attend here? The signals whose removal takes an attention weight below its threshold.

All firings of a layer are explained together: of all its heads, in all runs that lie side by side.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head
from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError, require_choice
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Between, nothing
from keyhole.qk.channels import check_place, score_row
from keyhole.qk.omega import omega
from keyhole.settings.fields import old_keyword
from keyhole.settings.tracing import why_not_of
from keyhole.tracing.candidates import Keys, Places, Sites, ig_vectors
from keyhole.tracing.firing import Explained, Firing, Tau, gather, threshold
from keyhole.tracing.search import Removed, Rows, joined, search
from keyhole.tracing.sides import dest_candidates, src_candidates
from keyhole.tracing.upstream import Writes, floats_per_pair, reads_of
from keyhole.tracing.writers import read_of, written_by

if TYPE_CHECKING:
    from keyhole.circuits.records import Signal
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing

Limits = Callable[[list[int], list[int], list[int]], Sequence[float]]  # runs, dests, visible keys -> tau of each
Site = tuple[int, int, int, int]  # run, head, dest, src
PROJECTED_FLOATS = 48_000_000  # projections held at once (about 200 MB in float32)
ON_ACCELERATORS = 16  # times as much
_COORD_FLOATS = 24_000_000  # coordinates of candidates held at once


@old_keyword("why", "why_not", why_not_of)
def explain(
    run: "Run",
    head: Head,
    dest: int | str = -1,
    src: int | str | None = None,
    *,
    tau: Tau = "dynamic",
    keys: Keys = "all",
    why_not: bool = False,
) -> Firing:
    """Which signals cause this attention weight? With `why_not`: which ones keep the head from attending to `src`?

    Signals against a firing are the fewest whose removal lifts the weight to tau. Their `weight`, `ig` and `alone` are
    what they take from it.

    Args:
        run: The run of the prompt.
        head: Layer and head, such as (3, 6).
        dest: The attending token: a position or the text of one token. Default: the last.
        src: The attended token, given likewise. Default: the one that `dest` attends to most.
        tau: The weight below which the attention counts as gone: a number, a function of `dest`, or "dynamic", min(1,
            2.5 / visible keys).
        keys: What a removal on the src side touches: "all" keys, as in the paper, or the "source" alone.
        why_not: Explain what keeps the head from attending to `src`, instead of why it attends.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> firing = explain(run, (3, 6), src="Mary")
    >>> firing.head, firing.why
    (6, 'here')
    """
    require_choice("keys", keys, Keys)
    if why_not and src is None:
        raise KeyholeError("say which token the head does not attend to: src.")
    layer, index, d, s = check_place(run, head, dest, src)
    with exact_matmul(), run.model._steady():
        score_row(run, layer, index, d)  # refuses scores that cannot be reconstructed
        if why_not and threshold(tau, d, int(run.attention_run(layer).visible([d]).sum())) == 1:
            raise KeyholeError(
                f"token {d} sees so few keys that tau is 1, and no removal lifts a weight to 1: give a tau."
            )
        (firing,) = explain_sites(Writes([run]), layer, [(0, index, d, s)], tau, keys=keys, why_not=why_not).firings()
    if why_not and not firing.sides:
        raise KeyholeError(
            f"head {layer}.{index} attends here already: {firing.attention:.3f} of token {d}'s attention is on token "
            f"{s}, and tau is {firing.tau:.3f}. Leave why_not (--why-not) out to see which signals cause it."
        )
    return firing


def explain_sites(
    writes: Writes,
    layer: int,
    places: Sequence[Site],
    tau: Tau = "dynamic",
    *,
    keys: Keys = "all",
    why_not: bool = False,
) -> Explained:
    """Explain some firings (run, head, dest, src) of a layer, in that order."""
    sites = Sites.of(sorted(places), writes.device)
    return explain_layer(writes, layer, sites, partial(thresholds, tau), keys=keys, why_not=why_not)


def thresholds(tau: Tau, runs: list[int], dests: list[int], visible: list[int]) -> list[float]:
    """Tau of firings, whichever run they are of."""
    return [threshold(tau, dest, n) for _, dest, n in zip(runs, dests, visible, strict=True)]


def explain_layer(
    writes: Writes,
    layer: int,
    sites: Sites,
    limit: Limits,
    *,
    keys: Keys = "all",
    why_not: bool = False,
    between: Between = nothing,
) -> Explained:
    """Explain firings of any heads of a layer together; they come sorted by run and head.

    `between` is called between batches of them: whoever wants the work to stop raises there.
    """
    weights, counts = _weights(writes, layer, sites)
    columns = {name: getattr(sites, name).cpu().numpy() for name in ("run", "head", "dest", "src")}
    tau = np.array(limit(columns["run"].tolist(), columns["dest"].tolist(), counts.tolist()), dtype=np.float64)
    fires = (weights >= tau) != why_not
    firing = np.nonzero(fires)[0]
    removed = _removed(writes, layer, sites, firing, tau=tau, keys=keys, lift=why_not, between=between)
    sign = -1.0 if why_not else 1.0
    dest, src = (
        gather(side, side_removed, weights, token=columns[side], writes=writes, layer=layer, sign=sign)
        for side, side_removed in zip(get_args(SideName), removed, strict=True)
    )
    return Explained(
        writes, layer, why_not, **columns, attention=weights, tau=tau, visible=counts, fires=fires, sides=(dest, src)
    )


def _weights(writes: Writes, layer: int, sites: Sites) -> tuple[Float[np.ndarray, "firing"], Int[np.ndarray, "firing"]]:
    """The attention weight of every firing, and how many keys its dest sees."""
    record, parts = writes.record(layer), []
    for part in _parts(len(sites), writes.n * writes.model.dims.d_head, _room(writes, _COORD_FLOATS)):
        rows = _rows(writes, layer, sites[part], np.zeros(part.stop - part.start))
        parts.append((rows.weight_after(torch.zeros_like(rows.scores)), sites[part].visible(record).sum(1)))
    weights, counts = (torch.cat(x).cpu().numpy() for x in zip(*parts, strict=True))
    return weights, counts


def _rows(writes: Writes, layer: int, sites: Sites, tau: Float[np.ndarray, "firing"]) -> Rows:
    record = writes.record(layer)
    columns = (sites.scores(record), sites.visible(record), sites.src)
    return Rows(*columns, torch.from_numpy(tau).to(writes.device), record.rule, sites.head)


def _removed(
    writes: Writes,
    layer: int,
    sites: Sites,
    fires: Int[np.ndarray, "fires"],
    *,
    tau: Float[np.ndarray, "firing"],
    keys: Keys,
    lift: bool,
    between: Between,
) -> list[Removed]:
    """What the searches on both sides take away, in batches of heads and of firings that fit into memory."""
    pairs = np.stack([sites.run.cpu().numpy()[fires], sites.head.cpu().numpy()[fires]], axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    pair = inverse.ravel()  # numpy 2.0.0 gave it another axis
    results: list[tuple[np.ndarray, list[Removed]]] = []
    size = writes.moved_below(layer) + writes.below(layer)[1] * writes.n
    for heads in _parts(len(distinct), floats_per_pair(writes, layer), _room(writes, PROJECTED_FLOATS)):
        members = np.nonzero((pair >= heads.start) & (pair < heads.stop))[0]
        dests = torch.unique(sites.dest[torch.from_numpy(fires[members]).to(writes.device)])
        reads = reads_of(writes, layer, [(run, head) for run, head in distinct[heads].tolist()], dests)
        for part in _parts(len(members), size * writes.model.dims.d_head, _room(writes, _COORD_FLOATS)):
            between()
            at = torch.from_numpy(fires[members[part]]).to(writes.device)
            rows = _rows(writes, layer, sites[at], tau[fires[members[part]]])
            w = ig_vectors(rows.scores, rows.visible, rows.src, rows.rule, heads=rows.heads)
            which = torch.from_numpy(pair[members[part]] - heads.start).to(writes.device)
            places = Places(writes, layer, sites[at], -w if lift else w, reads, which)  # what pulls against comes first
            sides = (dest_candidates(places), src_candidates(places, keys))
            results.append(
                (fires[members[part]], [search(candidates, rows, lift=lift, between=between) for candidates in sides])
            )
    return [joined([(at, sides[i]) for at, sides in results], len(sites)) for i in range(2)]


def _room(writes: Writes, floats: int) -> int:
    """How many numbers may be held at once: more where every batch costs hundreds of launches."""
    return floats if writes.device.type == "cpu" else ON_ACCELERATORS * floats


def _parts(n: int, floats: int, most: int) -> Iterator[slice]:
    """Some of n at a time, as many as fit into memory together."""
    size = max(1, most // max(1, floats))
    return (slice(i, min(i + size, n)) for i in range(0, n, size))


# What does a signal look like in residual space? The writer's vector, projected onto the channels it uses.
#
#     dest side:  sum over k of (u_k . x) u_k        src side:  sum over k of (v_k . x) v_k
#
# with x the lifted vector that the head reads as its (rotated) query or key part; in head space its coordinates are
# a_k / sigma_k and B_k. Flavours: `rotated` (what the head compares), `raw` (the writer's own vector, unrotated and
# not divided by the norm: what an intervention at the writer removes). In the homogeneous basis u_k and v_k have one
# more coordinate, for the biases. Nobody writes it, so it is 0 in what was written and is dropped from the signal.

Flavour = Literal["rotated", "raw"]


def signal_vector(firing: "Firing", signal: "Signal", *, flavour: Flavour = "rotated") -> Float[Tensor, "d_model"]:
    """A signal in residual space, within its channels.

    Args:
        firing: The firing, as `explain` returns it.
        signal: One of its signals.
        flavour: "rotated": as the head reads it, rotary positions included. "raw": as it was written.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> firing = explain(run, (1, 6), src="Mary")
    >>> signal_vector(firing, firing.side("src").signals[0]).shape
    torch.Size([128])
    """
    run, om = firing.run, omega(firing.run.model, firing.layer, signal.basis)
    ks, who = list(signal.channels), signal.writer
    basis = (om.u(firing.head) if signal.side == "dest" else om.v(firing.head))[: run.model.dims.d_model, ks]
    with exact_matmul():
        if flavour == "raw" and who.kind == "offset":
            raise KeyholeError("an offset is the head's own bias and is written nowhere: it has no raw vector.")
        if flavour == "raw":
            return basis @ (basis.T @ written_by(run, who, [who.dest], whole=signal.whole)[0])
        read = read_of(run, (firing.layer, firing.head), signal, [who.dest])[0]
        if signal.side == "dest":
            return basis @ ((read @ om.G_d[firing.head])[ks] / om.sigma[firing.head, ks])
        return basis @ (om.G_s[firing.head] @ read)[ks]
