"""What was written below a layer, and what does it come to in what the layer's heads read?

What was written before a firing? All writers of some runs of a model, side by side.

Heads are split by the token they read: what head h moves from source b, v_b W_O, does not depend on the destination.
Local writers have one vector per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.circuits.records import OFFSETS, Kind, SideName, Writer
from keyhole.errors import KeyholeError
from keyhole.models.facts import Rotary
from keyhole.models.mlps import MlpWeights, NoMlp
from keyhole.models.run import AttentionRun, LayerRun
from keyhole.models.stacks import stack, stack_layer
from keyhole.models.weights import LayerWeights
from keyhole.qk.omega import Omega, omega
from keyhole.tracing.writers import Patterns, attention_of, biases_of, by_number, values_of

if TYPE_CHECKING:
    from keyhole.models.run import Run

Numbers = TypeVar("Numbers", int, np.ndarray, Tensor)


class Writes:
    """All writers of some runs. Shorter runs are padded at the end: nothing is moved from there, and nobody sees it."""

    def __init__(self, runs: Sequence["Run"]) -> None:
        _require_one_device(runs[0])
        self.runs, self.model = tuple(runs), runs[0].model
        self.n = max(len(run) for run in runs)
        self.attention_layers = self.model.attention_layers
        self.dtype, self.device = runs[0].final_scale.dtype, runs[0].final_scale.device
        self._layers: dict[int, LayerRun] = {}
        self._weights: dict[int, LayerWeights] = {}
        self._mlps: dict[int, MlpWeights | NoMlp] = {}
        self._omegas: dict[int, Omega] = {}
        self._attention: dict[int, Tensor] = {}

    def layer(self, layer: int) -> LayerRun:
        """One layer of all runs."""
        if layer not in self._layers:
            self._layers[layer] = stack_layer(self.runs, layer)
        return self._layers[layer]

    def record(self, layer: int) -> AttentionRun:
        """One layer's attention in all runs."""
        record = self.layer(layer).attention
        assert record is not None, f"layer {layer} has no attention"
        return record

    def folded(self, layer: int) -> LayerWeights:
        """The folded weights of a layer; looked up once, for asking the model means checking that nothing changed.

        Where memory is limited they are looked up each time, and the model drops what was used longest ago.
        """
        if self.model.memory is not None:
            return self.model.folded(layer)
        if layer not in self._weights:
            self._weights[layer] = self.model.folded(layer)
        return self._weights[layer]

    def mlp(self, layer: int) -> MlpWeights | NoMlp:
        """The MLP of a layer, looked up once."""
        if self.model.memory is not None:
            return self.model.mlp(layer)
        if layer not in self._mlps:
            self._mlps[layer] = self.model.mlp(layer)
        return self._mlps[layer]

    def omega(self, layer: int) -> Omega:
        """The channels of a layer's heads, looked up once."""
        if self.model.memory is not None:
            return omega(self.model, layer)
        if layer not in self._omegas:
            self._omegas[layer] = omega(self.model, layer)
        return self._omegas[layer]

    def attention(self, layer: int) -> Float[Tensor, "runs pos d_model"]:
        """Everything a layer's attention writes, added up once."""
        if layer not in self._attention:
            self._attention[layer] = attention_of(self.record(layer), self.folded(layer))
        return self._attention[layer]

    def release(self) -> None:
        """Let go of all but who attended to whom and how writers are numbered, which finished circuits need."""
        for name in ("moved", "values", "local", "final_resid", "inside"):
            self.__dict__.pop(name, None)
        self._attention.clear()
        if self.patterns.keep():
            self._layers.clear()
            return
        for run in self.runs:  # of long prompts what was rounded away is as large as the run
            run._rounded.clear()

    @cached_property
    def final_resid(self) -> Float[Tensor, "runs pos d_model"]:
        """What the final norm reads."""
        return stack([run.final_resid for run in self.runs])

    @cached_property
    def final_scale(self) -> Float[Tensor, "runs pos"]:
        """And what it divides by."""
        return stack([run.final_scale[:, None] for run in self.runs], 1.0)[..., 0]

    @cached_property
    def patterns(self) -> Patterns:
        """Who attended to whom."""
        return Patterns([self.record(layer) for layer in self.attention_layers])

    @cached_property
    def values(self) -> Float[Tensor, "runs layers heads pos d_head"]:
        """v_b - b_V of every query head; nothing where there is no token."""
        values = torch.stack([self._values(layer) for layer in self.attention_layers], dim=1)
        return values * self.inside[:, None, None, :, None] if len(self.runs) > 1 else values

    def _values(self, layer: int) -> Float[Tensor, "runs heads pos d_head"]:
        return values_of(self.record(layer), self.folded(layer))

    @cached_property
    def inside(self) -> Float[Tensor, "runs pos"]:
        """1 at the tokens of each run, 0 beyond its end."""
        ends = torch.tensor([len(run) for run in self.runs], device=self.device)
        return (torch.arange(self.n, device=self.device) < ends[:, None]).to(self.dtype)

    @cached_property
    def out_scale(self) -> Float[Tensor, "runs layers pos"]:
        """m_t of every attention layer."""
        return torch.stack([self.record(layer).out_scale for layer in self.attention_layers], dim=1)

    @cached_property
    def moved(self) -> Float[Tensor, "runs layers heads pos d_model"]:
        """v_b W_O: what each head moves from each source, before attention and scale."""
        matrices = [self.folded(layer).W_O for layer in self.attention_layers]
        out = self.values.new_empty(*self.values.shape[:-1], self.model.dims.d_model)
        if len(self.runs) == 1:  # layer by layer: W_O is read where it lies
            for values, W_O, moved in zip(self.values[0], matrices, out[0], strict=True):
                torch.matmul(values, W_O, out=moved)
            return out
        stacked = torch.stack(matrices)
        for values, moved in zip(self.values, out, strict=True):  # run by run: a product of all would copy W_O for each
            torch.matmul(values, stacked, out=moved)
        return out

    @cached_property
    def local_slots(self) -> list[tuple[Kind, int]]:
        """(kind, layer) of the writers with one vector per token, in the order they write."""
        slots: list[tuple[Kind, int]] = [("embedding", 0)]
        for layer, record in enumerate(self.runs[0].layers):
            if record.attention is not None:
                slots.append(("bias", layer))
            if record.mixer is not None:
                slots.append(("mixer", layer))
            slots.append(("mlp", layer))
            if self.runs[0].is_rounded:
                slots.append(("rounding", layer))
        return slots

    @cached_property
    def has_constants(self) -> bool:
        """Does any attention layer write the same whatever the prompt says?"""
        return bool(self.local[:, [i for i, (kind, _) in enumerate(self.local_slots) if kind == "bias"]].any())

    @cached_property
    def _slot(self) -> dict[tuple[Kind, int], int]:
        return {slot: i for i, slot in enumerate(self.local_slots)}

    @cached_property
    def local(self) -> Float[Tensor, "runs local pos d_model"]:
        """What each local writer adds at each token."""
        return torch.stack([self._vectors(kind, layer) for kind, layer in self.local_slots], dim=1)

    def _vectors(self, kind: Kind, layer: int) -> Float[Tensor, "runs pos d_model"]:
        record = self.layer(layer)
        if kind == "bias":
            return biases_of(self.record(layer), self.folded(layer), list(range(self.n)))
        if kind == "rounding":
            return self.rounding(layer)
        vectors = {"embedding": record.resid, "mixer": record.mixer, "mlp": record.mlp}[kind]
        assert vectors is not None
        return vectors.to(self.dtype)

    def rounding(self, layer: int) -> Float[Tensor, "runs pos d_model"]:
        """What a layer rounded away, in half precision."""
        return stack([run.rounded(layer).stream for run in self.runs])

    def rounded_in(self, layer: int, side: SideName) -> Float[Tensor, "runs heads pos d_head"] | None:
        """What half precision rounded in a layer's queries (dest) or keys (src), before RoPE; None: full precision.

        Of query heads, or of KV heads.
        """
        if not self.runs[0].is_rounded:
            return None
        missed, rotary = [run.rounded(layer) for run in self.runs], self.record(layer).rotary
        turned = stack([x for each in missed if (x := each.q if side == "dest" else each.k) is not None])
        return turned if rotary is None else rotary.undo(turned)

    def biases(self, layer: int, dests: list[int]) -> Float[Tensor, "runs dest d_model"]:
        """What a layer's attention adds at some tokens whatever it attends to."""
        if "local" in self.__dict__:
            return self.local[:, self._slot["bias", layer], dests]
        return biases_of(self.record(layer), self.folded(layer), dests)

    def moved_by_heads(self, index: int, heads: slice) -> Float[Tensor, "runs heads pos d_model"]:
        """v_b W_O of some heads of the attention layer with this index; `moved` where that has been computed."""
        if "moved" in self.__dict__:
            return self.moved[:, index, heads]
        W_O = self.folded(self.attention_layers[index]).W_O[heads]
        values = self.values[:, index, heads].transpose(0, 1).flatten(1, 2)  # heads first: W_O is not copied per run
        return (values @ W_O).view(len(W_O), len(self.runs), self.n, -1).transpose(0, 1)

    def written(self, runs: Sequence[int], writers: Sequence[Writer]) -> Float[Tensor, "writer d_model"]:
        """What writers add to the stream, each at its token of its run; offsets, which nobody writes, nothing."""
        out = self.local.new_zeros(len(writers), self.local.shape[-1])
        local = [
            (i, r, self._slot[w.kind, w.layer], w.dest)
            for i, (r, w) in enumerate(zip(runs, writers, strict=True))
            if w.kind != "head" and w.kind not in OFFSETS
        ]
        if local:
            at, run, slot, token = (torch.tensor(x, device=self.device) for x in zip(*local, strict=True))
            out[at] = self.local[run, slot, token]
        heads = [
            (i, r, self.attention_layers.index(w.layer), w.head, w.dest, w.src)
            for i, (r, w) in enumerate(zip(runs, writers, strict=True))
            if w.kind == "head"
        ]
        if heads:
            at, *place = (torch.tensor(x, device=self.device) for x in zip(*heads, strict=True))
            out[at] = self._moved_to(*place)
        return out

    def _moved_to(
        self,
        run: Int[Tensor, "writer"],
        layer: Int[Tensor, "writer"],
        head: Int[Tensor, "writer"],
        dest: Int[Tensor, "writer"],
        src: Int[Tensor, "writer"],
    ) -> Float[Tensor, "writer d_model"]:
        """What heads move from one token to another; layers are counted among the attention layers."""
        factor = self.patterns.weights(layer, run, head, dest=dest, src=src) / self.out_scale[run, layer, dest]
        if self.n <= self.model.dims.d_head or "moved" in self.__dict__:  # short prompts: needed anyway
            return self.moved[run, layer, head, src] * factor[:, None]
        values = self.values[run, layer, head, src] * factor[:, None]
        out = values.new_empty(len(values), self.model.dims.d_model)
        for index, at_layer in by_number(layer):
            W_O = self.folded(self.attention_layers[index]).W_O
            for h, at in by_number(head[at_layer]):
                out[at_layer[at]] = values[at_layer[at]] @ W_O[h]
        return out

    @cached_property
    def _below(self) -> list[tuple[int, int]]:
        counts = []
        for layer in range(len(self.runs[0].layers) + 1):
            heads = sum(1 for other in self.attention_layers if other < layer)
            local = sum(1 for kind, other in self.local_slots if kind == "embedding" or other < layer)
            counts.append((heads, local))
        return counts

    def below(self, layer: int) -> tuple[int, int]:
        """How many attention layers and how many local writers lie below a layer."""
        return self._below[layer]

    def moved_below(self, layer: int) -> int:
        """How many head writes (layer, head, source) lie below a layer: their components come first."""
        return self.below(layer)[0] * self.patterns.n_heads * self.n

    def moved_by(self, component: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Which head write is which flat number: its attention layer (counted among these), its head, its source."""
        per_layer = self.patterns.n_heads * self.n
        return component // per_layer, component % per_layer // self.n, component % self.n

    def writer(self, component: int, layer: int, head: int, token: int) -> Writer:
        """Which writer is this flat component of a firing of `head`, as seen at `token`?"""
        _, n_local = self.below(layer)
        moved = self.moved_below(layer)
        if component < moved:
            index, other, source = self.moved_by(component)
            return Writer("head", self.attention_layers[index], other, token, source)
        if component < moved + n_local:
            kind, other_layer = self.local_slots[component - moved]
            return Writer(kind, other_layer, None, token, token)
        return Writer("offset", layer, head, token, token)


def _require_one_device(run: "Run") -> None:
    """Refuse a run whose layers computed on several devices: what they wrote is added up."""
    devices = sorted({str(layer.resid.device) for layer in run.layers} | {str(run.final_resid.device)})
    if len(devices) > 1:
        raise KeyholeError(
            f"the layers of this model compute on {', '.join(devices)}, and tracing needs one device: load it with "
            'device="cuda", or with a device_map that has one GPU beside the CPU and a disk.'
        )


# What does a head read of everything written below it? Projected once, and shared by all its firings.
#
# What is moved is projected onto W_Q and W_K of a downstream head; for long prompts W_O W_Q is composed first (r x r
# per pair of heads). The cheaper way is chosen by counting operations.

Pair = tuple[int, int]  # run, head


@dataclass(frozen=True)
class Reads:
    """What some heads read of everything below them, each in one run. Without RoPE already in channel coordinates."""

    q_moved: Float[Tensor, "pair moved read"]
    q_local: Float[Tensor, "pair local dest read"]
    k_moved: Float[Tensor, "key_pair moved read"]
    k_local: Float[Tensor, "key_pair local pos read"]
    key: Int[Tensor, "pair"]  # whose keys are whose: query heads may share them
    dests: Int[Tensor, "dest"]  # tokens at which queries are asked for, in ascending order
    rotary: Rotary | None  # of the layer

    @cached_property
    def sizes(self) -> tuple[Float[Tensor, "pair moved wave"], Float[Tensor, "key_pair moved wave"]]:
        """Amplitudes of what was moved, in queries and in keys: with RoPE, for bounds."""
        assert self.rotary is not None
        return self.rotary.amplitudes(self.q_moved), self.rotary.amplitudes(self.k_moved)


def reads_of(writes: Writes, layer: int, pairs: Sequence[Pair], dests: Int[Tensor, "dest"]) -> Reads:
    """Project everything below a layer onto queries at some tokens and onto keys of heads; pairs of a run adjoin."""
    w, om = writes.folded(layer), writes.omega(layer)
    if writes.record(layer).rotary is not None:  # rotation comes between the projection and the channels
        shared = sorted({(run, w.kv(head)) for run, head in pairs})
        number = {pair: i for i, pair in enumerate(shared)}
        key = [number[run, w.kv(head)] for run, head in pairs]
        q_side, k_side = w.W_Q, w.W_K
    else:
        shared, key = list(pairs), list(range(len(pairs)))
        q_side = w.W_Q @ om.G_d
        k_side = w.W_K.repeat_interleave(w.group, dim=0) @ om.G_s.mT
    everywhere = torch.arange(writes.n, device=writes.device)
    q = _projected(writes, layer, pairs, q_side, dests)
    k = _projected(writes, layer, shared, k_side, everywhere)
    return Reads(*q, *k, torch.tensor(key, device=writes.device), dests, writes.record(layer).rotary)


def floats_per_pair(writes: Writes, layer: int) -> int:
    """How many numbers one head's reads are."""
    rows = writes.moved_below(layer) + writes.below(layer)[1] * writes.n
    return max(1, rows * 2 * writes.model.dims.d_head)


def _projected(
    writes: Writes,
    layer: int,
    pairs: Sequence[Pair],
    sides: Float[Tensor, "heads d_model read"],
    tokens: Int[Tensor, "own"],
) -> tuple[Float[Tensor, "pair moved read"], Float[Tensor, "pair local own read"]]:
    """What was moved, and what was written at some tokens, through one side of heads: all of a run's at once."""
    (n_layers, n_local), width, start = writes.below(layer), sides.shape[2], 0
    moved = writes.local.new_empty(len(pairs), writes.moved_below(layer), width)
    local = writes.local.new_empty(len(pairs), n_local * len(tokens), width)
    whole = len(tokens) == writes.n
    for run, group in groupby(pairs, itemgetter(0)):
        W = sides[[head for _, head in group]]
        rows = slice(start, start + len(W))
        written = writes.local[run, :n_local]
        torch.matmul((written if whole else written[:, tokens]).flatten(0, 1), W, out=local[rows])
        _project_moved(writes, n_layers, run, W, out=moved[rows])
        start = rows.stop
    return moved, local.view(len(pairs), n_local, len(tokens), width)


def composing_is_cheaper(n: int, d_model: int, d_head: int) -> bool:
    """Per pair of heads: d r^2 + T r^2 multiplications with W_O W_Q composed first, T d r without."""
    return d_model * d_head + n * d_head < n * d_model


def _project_moved(
    writes: Writes,
    n_layers: int,
    run: int,
    W: Float[Tensor, "heads d_model read"],
    *,
    out: Float[Tensor, "heads moved read"],
) -> None:
    dims = writes.model.dims
    if n_layers == 0:
        return
    if not composing_is_cheaper(writes.n, dims.d_model, dims.d_head):
        torch.matmul(writes.moved[run, :n_layers].flatten(0, 2), W, out=out)
        return
    by_layer = out.view(len(W), n_layers, dims.heads, writes.n, -1)
    reading = W.transpose(0, 1).flatten(1)  # what all these heads read, side by side: one product per layer
    for index in range(n_layers):
        W_O = writes.folded(writes.attention_layers[index]).W_O
        composed = (W_O.flatten(0, 1) @ reading).view(*W_O.shape[:2], len(W), -1)
        for head in range(len(W)):
            torch.matmul(writes.values[run, index], composed[:, :, head], out=by_layer[head, index])
