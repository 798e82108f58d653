"""What did a model in half precision round away, and can rounding explain it?

In bfloat16 or float16 a residual stream is a sum of writes and of what was rounded away. Per layer and token, exactly

    rounding = stream after the layer - (stream before it + attention + mixer + MLP, added up in float32)

is a writer of its own. It holds what both additions and the attention block rounded; so streams add up by construction.
What was rounded in a query or key belongs to its head, as the biases there do: it is part of the head's offset.

That alone would hide a fact that is wrong. So facts are checked apart, in float32 (`exactness.py`), and what was
rounded is bounded entry by entry: by the unit roundoff times the magnitudes that were added up on the way there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.models.facts import Norm, Rotary, read_norm
from keyhole.models.mlps import Neurons
from keyhole.models.numbers import exact_matmul, require_rounding, unit_roundoff
from keyhole.models.stacks import read_keys, read_queries, read_values
from keyhole.models.weights import optional, projections, read_qk_norm, submodule
from keyhole.tracing.writers import attention_of

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.mlp_places import Places

_STEPS = 8  # roundings in a row, at most, between magnitudes and what comes of them


@dataclass(frozen=True)
class Rounded:
    """What one layer of a run rounded away."""

    stream: Float[Tensor, "pos d_model"]  # between the streams before and after it
    q: Float[Tensor, "heads pos d_head"] | None  # of rotated queries; None: a layer without attention
    k: Float[Tensor, "kv_heads pos d_head"] | None


def rounded(run: "Run", layer: int) -> Rounded:
    """What one layer of a run rounded away; of a run in full precision, nothing but noise."""
    here, record = run.layers[layer], run.layers[layer].attention
    with exact_matmul():
        total, q, k = here.resid.to(run.final_scale.dtype), None, None
        if record is not None:
            w = run.model.folded(layer)
            q, k = record.q.to(total) - read_queries(here, w), record.k.to(total) - read_keys(here, w)
            total = total + attention_of(record, w)
        if here.mixer is not None:
            total = total + here.mixer
        total = total + here.mlp
        return Rounded(_after(run, layer).to(total) - total, q, k)


def _after(run: "Run", layer: int) -> Float[Tensor, "pos d_model"]:
    return run.layers[layer + 1].resid if layer + 1 < len(run.layers) else run.final_resid


# How much is it?


@dataclass(frozen=True)
class Rounding:
    """What a run in half precision rounded away, all layers added up, relative to the norm of its last stream."""

    typical: float  # the median over all tokens
    largest: float  # at the token where it is most
    token: int  # that one
    share: float  # of what rounding explains: the largest that any entry of any layer uses; above 1 it is no rounding


def rounding_of(run: "Run", layers: Sequence["LayerRounding"]) -> Rounding:
    """How much did a run round away, all in all?"""
    sizes = rounding_at(run)
    token = int(sizes.argmax())
    return Rounding(float(sizes.median()), float(sizes[token]), token, max(layer.share for layer in layers))


def rounding_at(run: "Run") -> Float[Tensor, "pos"]:
    """What all layers rounded away at each token, relative to the norm of the last stream there."""
    missed = torch.stack([run.rounded(layer).stream for layer in range(len(run.layers))]).sum(0)
    sizes: Tensor = missed.norm(dim=1) / run.final_resid.to(missed).norm(dim=1)
    return sizes


def sizes_of(run: "Run") -> list[float]:
    """What each layer rounded away, relative to the norm of the stream after it: the median over all tokens."""
    missed = [run.rounded(layer).stream for layer in range(len(run.layers))]
    return [float((x.norm(dim=1) / _after(run, i).to(x).norm(dim=1)).median()) for i, x in enumerate(missed)]


# How large can it be? Magnitudes are added up where the model adds values.


@dataclass(frozen=True)
class Explained:
    """The entry of some tensor that comes closest to what rounding explains, or exceeds it most."""

    size: float  # of what was rounded away there
    bound: float  # what rounding explains

    @property
    def share(self) -> float:
        """Of the bound that is used."""
        return self.size / self.bound if self.bound else math.inf * self.size if self.size else 0.0


def worst(missed: Float[Tensor, "*any"], bound: Float[Tensor, "*any"]) -> Explained:
    """The entry with the largest share of its bound; one that is no number exceeds it."""
    share = torch.nan_to_num(missed.abs() / bound, nan=math.inf).flatten()
    at = int(share.argmax())
    return Explained(float(missed.abs().flatten()[at]), float(bound.flatten()[at]))


@dataclass(frozen=True)
class LayerRounding:
    """How much of its bounds one layer uses: the stream after it; queries, keys and values, where it has attention."""

    stream: Explained
    queries: Explained | None = None
    keys: Explained | None = None
    values: Explained | None = None

    @property
    def share(self) -> float:
        """The largest that any of them uses."""
        return max(found.share for found in (self.stream, self.queries, self.keys, self.values) if found is not None)


def layer_rounding(run: "Run", layer: int) -> LayerRounding:
    """Does rounding explain what one layer of a run rounded away?"""
    missed, record = run.rounded(layer), run.layers[layer].attention
    with exact_matmul():
        stream = worst(missed.stream, _stream_bound(run, layer))
        if record is None or missed.q is None or missed.k is None:
            return LayerRounding(stream)
        v = record.v.to(missed.stream) - read_values(run.layers[layer], run.model.folded(layer))
        tensors = zip((missed.q, missed.k, v), _input_bounds(run, layer), strict=True)
        return LayerRounding(stream, *(worst(tensor, bound) for tensor, bound in tensors))


def require_bounded(run: "Run") -> list[LayerRounding]:
    """Refuse a run where something is farther apart than rounding explains; returns how much of it is used."""
    layers = [layer_rounding(run, layer) for layer in range(len(run.layers))]
    for index, layer in enumerate(layers):
        named = (
            ("the residual stream after layer", layer.stream),
            ("the queries of layer", layer.queries),
            ("the keys of layer", layer.keys),
            ("the values of layer", layer.values),
        )
        for name, found in named:
            if found is not None:
                require_rounding(found.size, found.bound, run.dtype, f"{name} {index}")
    return layers


def _floor(run: "Run") -> float:
    """Numbers below the smallest normal one are rounded as coarsely as it is."""
    return torch.finfo(run.dtype).smallest_normal


def _stream_bound(run: "Run", layer: int) -> Float[Tensor, "pos d_model"]:
    """Both additions, and the attention block: weights, mixed values, output projection, norm, multiplier."""
    here, u, floor = run.layers[layer], unit_roundoff(run.dtype), _floor(run)
    after = _after(run, layer).to(run.final_scale.dtype)
    added = here.resid.abs().to(after) + after.abs() + here.mlp.abs().to(after)
    if here.mixer is not None:
        added = added + here.mixer.abs().to(after)
    bound = 2 * u * (added + floor)
    if here.attention is None:
        return bound
    record, w, blocks = here.attention, run.model.folded(layer), []
    values = (record.v.to(after).abs() + floor).repeat_interleave(record.group, dim=-3)
    for dests in record.blocks:
        A = record.weights(record.heads, dests)
        # Families that keep their own attention round scores too, and weights follow.
        steps = _STEPS * u if run.model.family.routed else _STEPS * u + torch.expm1(2 * _score_bound(run, layer, dests))
        mixed = ((steps * A + u * floor) @ values).transpose(-3, -2).flatten(-2)
        written = mixed @ w.W_O.flatten(0, 1).abs() + _STEPS * u * w.b_O.abs()
        blocks.append(written / record.out_scale[list(dests), None])
    return bound + torch.cat(blocks)


def _score_bound(run: "Run", layer: int, dests: range) -> Float[Tensor, "heads dest 1"]:
    """What the scores of some destinations may be off, if the model rounds them: the most over all keys."""
    record = run.attention_run(layer)
    q = record.q[:, list(dests)].abs().to(record.norm_scale.dtype)
    k = record.k.abs().to(q).repeat_interleave(record.group, dim=-3)
    most = abs(record.rule.scaling) * (q @ k.mT)
    if record.rule.key_bias is not None:
        most = most + record.rule.key_bias[:, None].abs()
    return _STEPS * unit_roundoff(run.dtype) * (most * record.visible(dests)).amax(-1, keepdim=True)


def _input_bounds(run: "Run", layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values: the norm, the projection, a norm on queries or keys, a factor, RoPE."""
    family, dims, block = run.model.family, run.model.dims, run.model.blocks[layer]
    attn, record = submodule(block, family.attn), run.attention_run(layer)
    u, floor = unit_roundoff(run.dtype), _floor(run)
    module = optional(block, family.attn_norm)
    norm = None if module is None else read_norm(module, family.norm, family.norm_adds_one)
    h = normed_magnitude(norm, run.layers[layer].resid.to(record.norm_scale), record.norm_scale[:, None]) + floor
    scales = (record.q_scale, record.k_scale, None)
    bounds = []
    for side, ((W, b), scale) in enumerate(zip(projections(attn, family, dims), scales, strict=True)):
        size = h @ W.abs() + b.abs()[:, None] + floor
        if scale is not None:
            qk_norm = read_qk_norm(attn, family, side)
            size = _turned(_scaled(size, qk_norm, scale), record.rotary)
        bounds.append(_STEPS * u * size)
    return bounds[0], bounds[1], bounds[2]


def normed_magnitude(
    norm: Norm | None, x: Float[Tensor, "pos d_model"], scale: Float[Tensor, "pos 1"]
) -> Float[Tensor, "pos d_model"]:
    """The magnitudes that a norm adds up: |gain centre(x)| / n + |bias|."""
    if norm is None:
        return x.abs()
    h = norm.centre(x).abs() / scale
    h = h if norm.gain is None else h * norm.gain.abs()
    return h if norm.bias is None else h + norm.bias.abs()


def _scaled(
    size: Float[Tensor, "heads pos d_head"], norm: Norm | None, scale: Float[Tensor, "heads pos"]
) -> Float[Tensor, "heads pos d_head"]:
    """Through a norm on queries or keys, whose scale is that of the run."""
    heads, _, d_head = size.shape
    if norm is not None and norm.kind == "layer":
        size = size + size.mean(-1, keepdim=True)
    size = size * scale[..., None].abs()
    if norm is not None and norm.gain is not None:
        size = size * norm.gain.reshape(-1, d_head).expand(heads, d_head).abs()[:, None]
    if norm is not None and norm.bias is not None:
        size = size + norm.bias.reshape(-1, d_head).expand(heads, d_head).abs()[:, None]
    return size


def _turned(size: Float[Tensor, "heads pos d_head"], rotary: Rotary | None) -> Float[Tensor, "heads pos d_head"]:
    """Through RoPE: |cos| of one magnitude and |sin| of the other, for each pair of dimensions."""
    if rotary is None:
        return size
    absolute = Rotary(rotary.cos.abs(), rotary.sin.abs(), rotary.pairing)
    return torch.maximum(
        absolute.rotate(size), absolute.transpose(size)
    )  # one adds in the first of a pair, one in the other


# And what an MLP writes along a direction? A bound through two layers of sums would be a thousand times what happens:
# roundings are as often up as down. So it is first-order, as of independent roundings (Higham and Mary 2019): the root
# of the sum of their squares, times _SURE.

_SURE = 6.0  # a sum of independent roundings is farther off less than once in a hundred million


def mlp_bound(
    places: "Places", d: Float[Tensor, "spot d_model"], removed: Float[Tensor, "spot d_model"] | None = None
) -> list[float]:
    """How far MLPs' writes along a direction at each place may be from what their folded weights give.

    With `removed`, of MLPs that read less by so much, with the scales of the run.
    """
    run, weights = places.stream.runs[0], places.weights
    floor, d = _floor(run), d.to(places.x)
    x = places.x if removed is None else places.x - removed
    read, g = normed_magnitude(weights.reads, places.x, places.scale) + floor, torch.zeros_like(x)
    if removed is not None:
        read = read + weights.read(removed).abs() / places.scale
    total = torch.zeros_like(x[:, 0])
    for e, (expert, pre, c) in enumerate(zip(places.neurons, places.pre(x), places.along(d).c, strict=True)):
        steep, full = _steep(expert, pre, c), (pre + expert.biases.to(pre)[:, None]).abs() + floor
        y = expert.values(pre).abs() + floor
        total += (steep * full).square().sum((0, 2)) + (c * y).square().sum(1)
        if len(full) == 1:  # an activation that is spelt out in several tensors is rounded in each
            total += (c * full[0]).square().sum(1)
        back = sum(s @ W.T.to(s) for s, W in zip(steep, expert.reading, strict=True))
        g += back * places.reads[:, e, None]
    written = places.write(x)
    total += (read * g).square().sum(1) + (d * (written.abs() + floor)).square().sum(1)
    if weights.post_norm is not None:  # its scale is one number for all
        total += (d * written).sum(1).square()
    return (2 * _SURE * unit_roundoff(run.dtype) * total.sqrt()).tolist()


def require_mlp(places: "Places", d: Float[Tensor, "spot d_model"]) -> None:
    """Refuse an MLP that wrote something else along a direction than its folded weights and rounding explain."""
    (bound,), (missed,) = mlp_bound(places, d), ((places.wrote - places.computed) * d.to(places.x)).sum(1).tolist()
    require_rounding(abs(missed), bound, places.stream.runs[0].dtype, f"what the MLP of layer {places.layer} writes")


def _steep(
    neurons: Neurons, pre: Float[Tensor, "kind spot neuron"], c: Float[Tensor, "spot neuron"]
) -> Float[Tensor, "kind spot neuron"]:
    """The derivatives of what neurons write along a direction, by their pre-activations."""
    with torch.inference_mode(False), torch.enable_grad():
        at = pre.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad((c.detach().clone() * neurons.values(at)).sum(), at)
    return slope.detach()
