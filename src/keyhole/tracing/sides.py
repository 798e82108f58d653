"""What could cause a firing on either side? All writers below it, as the head reads them in its query or in its keys.

With RoPE, moved writes of long prompts are bounded first (`bounds.py`), and of the best alone everything is computed.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.models.facts import Rotary, turn
from keyhole.tracing.bounds import Bounded, arriving, reach_of, turned_sums
from keyhole.tracing.candidates import Candidates, Keys, Places
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import Patterns


def dest_candidates(places: Places) -> Candidates:
    """Candidates on the dest side: writes at dest, a^(c) = R_d (W_Q^T o_c s_d / n_d) G_d, rows a_k^(c) B_tk."""
    writes, layer, reads, pair = places.writes, places.layer, places.reads, places.pair
    run, head, dest = places.sites.run, places.sites.head, places.sites.dest
    record, om, w = writes.record(layer), writes.omega(layer), writes.folded(layer)
    n_layers, G_d = writes.below(layer)[0], om.G_d[head]
    B = record.k[run, record.kv(head)].to(writes.dtype) @ om.G_s[head].mT  # [firing, key, channel]
    scale = record.q_scale[run, head, dest] / record.norm_scale[run, dest]
    factor = B.new_zeros(len(run), 0)
    if n_layers:
        rows = writes.patterns.rows(n_layers, run, dest) / writes.out_scale[run, :n_layers, dest][:, :, None, None]
        factor = rows.flatten(1) * scale[:, None]
    local = reads.q_local[pair, :, torch.searchsorted(reads.dests, dest)] * scale[:, None, None]
    offset = (record.q_scale[run, head, dest][:, None] * w.b_Q[head] + w.c_Q[head])[:, None]
    if (missed := writes.rounded_in(layer, "dest")) is not None:
        offset = offset + missed[run, head, dest][:, None]
    gain = record.rule.scaling * (places.w.to(B.dtype)[:, None] @ B)[:, 0]
    coord: Tensor | None = reads.q_moved
    at: Tensor | None = pair
    bounded = None
    if record.rotary is None:
        local = torch.cat([local, offset @ G_d], dim=1)
    else:
        turning = record.rotary.at(dest)
        local = _turned_at(torch.cat([local, offset], dim=1), turning) @ G_d
        if n_layers and is_bounded(writes, layer):
            coord, at, bounded = None, None, _bounded_queries(places, factor, gain, turning)
        else:
            coord, at = _turned_at(reads.q_moved[pair], turning) @ G_d, None

    def build(firings: Tensor, components: Tensor, channels: Tensor) -> Tensor:
        f = firings[:, None].expand_as(components)
        value = local[f, (components - factor.shape[1]).clamp_min(0), channels]
        if n_layers:
            c = components.clamp_max(factor.shape[1] - 1)
            if coord is not None:
                moved = coord[f if at is None else at[f], c, channels]
            else:
                assert record.rotary is not None
                turned = _turned_at(reads.q_moved[pair[f], c], record.rotary.at(dest[firings]))
                moved = (turned * G_d.mT[f, channels]).sum(-1)
            value = torch.where(components < factor.shape[1], factor[f, c] * moved, value)
        return record.rule.scaling * value[..., None] * B[f, :, channels]

    firings = torch.arange(len(gain), device=gain.device)
    return Candidates(factor, coord, at, local, gain, firings, build, bounded)


def is_bounded(writes: Writes, layer: int) -> bool:
    """Is the prompt so long, and RoPE in the way, that moved writes are bounded first?"""
    return writes.record(layer).rotary is not None and not writes.patterns.small


def _bounded_queries(
    places: Places, factor: Float[Tensor, "firing moved"], gain: Float[Tensor, "firing channel"], turning: Rotary
) -> Bounded:
    """Moved writes in the queries of long prompts."""
    G_d = places.writes.omega(places.layer).G_d[places.sites.head]

    def exact(firing: int, chosen: Tensor) -> Tensor:
        y = places.reads.q_moved[places.pair[firing], chosen]
        turned = turn(y, turning.cos[firing], turning.sin[firing], turning.pairing)
        return factor[firing, chosen, None] * (turned @ G_d[firing]) * gain[firing]

    reach, everything = reach_of(turning, G_d.mT, gain), torch.arange(factor.shape[1], device=factor.device)
    size = places.reads.sizes[0]
    return Bounded(factor.abs(), size, places.pair, reach, exact, lambda firing: exact(firing, everything))


def src_candidates(places: Places, keys: Keys = "all") -> Candidates:
    """Candidates on the src side: writes at all keys or at src alone, rows a_k (G_s R_t W_K^T o_c,t s_t / n_t)_k."""
    writes, layer, reads, key = places.writes, places.layer, places.reads, places.reads.key[places.pair]
    run, head, dest = places.sites.run, places.sites.head, places.sites.dest
    record, om, w = writes.record(layer), writes.omega(layer), writes.folded(layer)
    kv, n_layers, n_moved, G_s = record.kv(head), writes.below(layer)[0], writes.moved_below(layer), om.G_s[head]
    touched = torch.ones_like(places.w) if keys == "all" else _only(places.sites.src, places.w)
    pull = (places.w * touched).to(writes.dtype)
    per_key = record.k_scale[run, kv] / record.norm_scale[run]
    a = record.rule.scaling * (record.q[run, head, dest].to(writes.dtype)[:, None] @ om.G_d[head])[:, 0]
    offset = (record.k_scale[run, kv][..., None] * w.b_K[kv][:, None] + w.c_K[kv][:, None])[:, None]
    if (missed := writes.rounded_in(layer, "src")) is not None:
        offset = offset + missed[run, kv][:, None]
    per_move = per_key[:, None] / writes.out_scale[run, :n_layers]  # [firing, layers, pos]
    if n_layers and is_bounded(writes, layer):
        return _bounded_keys(places, pull, per_key, per_move=per_move, offset=offset, gain=a, touched=touched)
    offered = reads.k_local[key] * per_key[:, None, :, None]
    if record.rotary is None:
        offered = torch.cat([offered, offset @ G_s[:, None].mT], dim=1)  # [firing, local, pos, channel]
    else:
        offered = record.rotary.rotate(torch.cat([offered, offset], dim=1)) @ G_s[:, None].mT
    local = torch.einsum("ft,fctk->fck", pull, offered)
    coord, factor = reads.k_moved, a.new_zeros(len(a), 0)
    at: Tensor | None = key
    if n_layers and record.rotary is None:
        factor = writes.patterns.push(n_layers, pull[:, None] * per_move, run).flatten(1)
    elif n_layers and record.rotary is not None:
        coord, at = _turned_sum(writes.patterns, pull[:, None] * per_move, run, reads.k_moved[key], record.rotary), None
        coord = coord @ G_s.mT
        factor = coord.new_ones(coord.shape[:2])

    def build(firings: Tensor, components: Tensor, channels: Tensor) -> Tensor:
        f = firings[:, None].expand_as(components)
        value = offered[f, (components - n_moved).clamp_min(0), :, channels]
        _put_moved(value, places, per_move, firings=f, components=components, channels=channels)
        value = value * a[firings].gather(1, channels)[..., None]
        return value if keys == "all" else value * touched[firings][:, None].to(value.dtype)

    return Candidates(factor, coord, at, local, a, torch.arange(len(a), device=a.device), build)


def _put_moved(
    rows: Float[Tensor, "row pick key"],
    places: Places,
    per_move: Float[Tensor, "firing layers pos"],
    *,
    firings: Int[Tensor, "row pick"],
    components: Int[Tensor, "row pick"],
    channels: Int[Tensor, "row pick"],
) -> None:
    """Put the coordinates of chosen moved writes at every key into their rows."""
    writes, layer, reads, run = places.writes, places.layer, places.reads, places.sites.run
    is_moved = components < writes.moved_below(layer)
    if not bool(is_moved.any()):
        return
    picks, k, f = components[is_moved], channels[is_moved], firings[is_moved]
    index, mover, source = writes.moved_by(picks)
    column = writes.patterns.columns(index, run[f], mover, source) * per_move[f, index]
    y, G_s = reads.k_moved[reads.key[places.pair[f]], picks], writes.omega(layer).G_s[places.sites.head[f], k]
    rows[is_moved] = column * _along_keys(y, k, writes.record(layer).rotary, G_s)


def _bounded_keys(
    places: Places,
    pull: Float[Tensor, "firing pos"],
    per_key: Float[Tensor, "firing pos"],
    *,
    per_move: Float[Tensor, "firing layers pos"],
    offset: Float[Tensor, "firing 1 pos d_head"],
    gain: Float[Tensor, "firing channel"],
    touched: Float[Tensor, "firing pos"],
) -> Candidates:
    """Candidates on the src side of long prompts: sums over keys are taken before channels, and of few moved writes."""
    writes, layer, reads, run = places.writes, places.layer, places.reads, places.sites.run
    key, rotary, G_s = reads.key[places.pair], writes.record(layer).rotary, writes.omega(layer).G_s[places.sites.head]
    assert rotary is not None
    u, n_moved = pull[:, None] * per_move, writes.moved_below(layer)
    local = torch.cat(
        [_summed_over_keys(reads.k_local[key], pull * per_key, rotary), _summed_over_keys(offset, pull, rotary)], dim=1
    )

    def exact(firing: int, chosen: Tensor) -> Tensor:
        y, numbers = reads.k_moved[key[firing], chosen], writes.moved_by(chosen)
        sums = turned_sums(writes.patterns, u[firing], int(run[firing]), y, places=numbers, rotary=rotary)
        return sums @ G_s[firing].T * gain[firing]

    def every(firing: int) -> Tensor:
        at = slice(firing, firing + 1)
        sums = _turned_sum(writes.patterns, u[at], run[at], reads.k_moved[key[at]], rotary)
        return sums[0] @ G_s[firing].T * gain[firing]

    def build(firings: Tensor, components: Tensor, channels: Tensor) -> Tensor:
        f, c = firings[:, None].expand_as(components), (components - n_moved).clamp(0, reads.k_local.shape[1])
        y = reads.k_local[key[f], c.clamp_max(reads.k_local.shape[1] - 1)] * per_key[f][..., None]
        y = torch.where((c == reads.k_local.shape[1])[..., None, None], offset[f, 0], y)
        value = (rotary.rotate(y) @ G_s[f, channels][..., None])[..., 0]
        _put_moved(value, places, per_move, firings=f, components=components, channels=channels)
        return value * gain[firings].gather(1, channels)[..., None] * touched[firings][:, None].to(value.dtype)

    mass = arriving(writes.patterns, u, run)
    whole = torch.ones_like(mass)  # sums over keys have the weights inside
    bounded = Bounded(mass, reads.sizes[1], key, reach_of(rotary, G_s, gain), exact, every)
    firings = torch.arange(len(gain), device=gain.device)
    return Candidates(whole, None, None, local @ G_s.mT, gain, firings, build, bounded)


def _summed_over_keys(
    y: Float[Tensor, "firing local pos d_head"], u: Float[Tensor, "firing pos"], rotary: Rotary
) -> Float[Tensor, "firing local d_head"]:
    """Sum over t of u_t R_t y_t."""
    turned = torch.empty_like(y[:, :, 0])
    for at in range(y.shape[1]):
        turned[:, at] = (rotary.rotate(y[:, at]) * u[..., None]).sum(1)
    return turned


def _only(src: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter(1, src[:, None], 1.0)


def _turned_at(x: Float[Tensor, "firing any d_head"], at: Rotary) -> Float[Tensor, "firing any d_head"]:
    """RoPE at the dest d of each firing: R_d x."""
    return turn(x, at.cos[:, None], at.sin[:, None], at.pairing)


def _turned_sum(
    patterns: Patterns,
    u: Float[Tensor, "firing layers pos"],
    run: Int[Tensor, "firing"],
    moved: Float[Tensor, "firing moved d_head"],
    rotary: Rotary,
) -> Float[Tensor, "firing moved d_head"]:
    """Sum over t of u_t A_tb R_t y, for every write y moved from token b.

    Per frequency, the sums over t of u A cos and u A sin are enough: y does not depend on t.
    """
    layers, firings, n_freq = u.shape[1], len(u), rotary.cos.shape[1]
    waves = torch.cat([rotary.cos.T, rotary.sin.T, torch.ones_like(rotary.cos[:, :1]).T]).to(u.dtype)
    turning = (u[:, None] * waves[None, :, None]).flatten(0, 1)
    sums = patterns.push(layers, turning, run.repeat_interleave(len(waves)))
    sums = sums.reshape(firings, len(waves), -1).transpose(1, 2)  # [firing, moved, waves]
    return rotary.summed(moved, sums[..., :n_freq], sums[..., n_freq : 2 * n_freq], sums[..., -1])


def _along_keys(
    y: Float[Tensor, "pick d_head"], k: Int[Tensor, "pick"], rotary: Rotary | None, G_s: Float[Tensor, "pick d_head"]
) -> Float[Tensor, "pick pos"]:
    """(G_s R_t y)_k at every key t, for chosen writes y and channels k."""
    return y.gather(1, k[:, None]) if rotary is None else rotary.dots(G_s, y)
