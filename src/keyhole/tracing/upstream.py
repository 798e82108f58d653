"""What could have caused a firing? Everything written below its layer, projected onto what its head reads.

What head h' moves from source b, v_b W_O, does not depend on the destination: it is projected once onto W_Q and W_K
of a downstream head and shared by all firings of that head. For long prompts W_O W_Q is composed first (r x r per
pair of heads); the cheaper way is chosen by counting operations.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import OFFSETS, Kind, Writer
from keyhole.models.mlps import MlpWeights, NoMlp
from keyhole.models.weights import LayerWeights
from keyhole.qk.omega import Omega, omega
from keyhole.tracing.patterns import Patterns
from keyhole.tracing.writers import attention_writes, bias_writes, moved_values

if TYPE_CHECKING:
    from keyhole.models.run import Run

_PROJECTED_FLOATS = 48_000_000  # projections held at once (about 200 MB in float32)


class Writes:
    """All writers of one run, in two kinds: heads per source token, and local writers with one vector per token."""

    def __init__(self, run: "Run") -> None:
        self.run, self.patterns = run, Patterns(run)
        self.attention_layers = run.model.attention_layers
        self.dtype = run.final_scale.dtype
        self._weights: dict[int, LayerWeights] = {}
        self._mlps: dict[int, MlpWeights | NoMlp] = {}
        self._omegas: dict[int, Omega] = {}
        self._attention: dict[int, Tensor] = {}
        self._written: dict[Writer, Tensor] = {}

    def weights(self, layer: int) -> LayerWeights:
        """The folded weights of a layer; looked up once, for asking the model means checking that nothing changed."""
        if layer not in self._weights:
            self._weights[layer] = self.run.model.weights(layer)
        return self._weights[layer]

    def mlp(self, layer: int) -> MlpWeights | NoMlp:
        """The MLP of a layer, looked up once."""
        if layer not in self._mlps:
            self._mlps[layer] = self.run.model.mlp(layer)
        return self._mlps[layer]

    def omega(self, layer: int) -> Omega:
        """The channels of a layer's heads, looked up once."""
        if layer not in self._omegas:
            self._omegas[layer] = omega(self.run.model, layer)
        return self._omegas[layer]

    def attention(self, layer: int) -> Float[Tensor, "pos d_model"]:
        """Everything a layer's attention writes, added up once."""
        if layer not in self._attention:
            self._attention[layer] = attention_writes(self.run, layer)
        return self._attention[layer]

    @cached_property
    def values(self) -> Float[Tensor, "layers heads pos d_head"]:
        """v_b - b_V of every query head."""
        return torch.stack([moved_values(self.run, layer) for layer in self.attention_layers])

    @cached_property
    def out_scale(self) -> Float[Tensor, "layers pos"]:
        """m_t of every attention layer."""
        return torch.stack([self.run.layer(layer).out_scale for layer in self.attention_layers])

    @cached_property
    def moved(self) -> Float[Tensor, "layers heads pos d_model"]:
        """v_b W_O: what each head moves from each source, before attention and scale."""
        weights = [self.weights(layer).W_O for layer in self.attention_layers]
        return torch.stack([v @ W_O for v, W_O in zip(self.values, weights, strict=True)])

    @cached_property
    def moved_norms(self) -> Float[Tensor, "layers heads pos"]:
        """How much each head moves from each source, before attention and scale."""
        weights = [self.weights(layer).W_O for layer in self.attention_layers]
        return torch.stack([(v @ W_O).norm(dim=-1) for v, W_O in zip(self.values, weights, strict=True)])

    @cached_property
    def local_slots(self) -> list[tuple[Kind, int]]:
        """(kind, layer) of the writers with one vector per token, in the order they write."""
        slots: list[tuple[Kind, int]] = [("embedding", 0)]
        for layer, record in enumerate(self.run.layers):
            if record.attention is not None:
                slots.append(("bias", layer))
            if record.mixer is not None:
                slots.append(("mixer", layer))
            slots.append(("mlp", layer))
        return slots

    @cached_property
    def has_constants(self) -> bool:
        """Does any attention layer write the same whatever the prompt says?"""
        return bool(self.local[[i for i, (kind, _) in enumerate(self.local_slots) if kind == "bias"]].any())

    @cached_property
    def _slot(self) -> dict[tuple[Kind, int], int]:
        return {slot: i for i, slot in enumerate(self.local_slots)}

    @cached_property
    def local(self) -> Float[Tensor, "local pos d_model"]:
        """What each local writer adds at each token."""
        return torch.stack([self._vectors(kind, layer) for kind, layer in self.local_slots])

    def _vectors(self, kind: Kind, layer: int) -> Float[Tensor, "pos d_model"]:
        record = self.run.layers[layer]
        if kind == "bias":
            return bias_writes(self.run, layer, list(range(len(self.run))))
        found = {"embedding": record.resid, "mixer": record.mixer, "mlp": record.mlp}[kind]
        assert found is not None
        return found.to(self.dtype)

    def written(self, writer: Writer) -> Float[Tensor, "d_model"]:
        """What one writer adds to the residual stream at its token; offsets, which nobody writes, nothing."""
        if writer not in self._written:
            self._written[writer] = self._write(writer)
        return self._written[writer]

    def _write(self, writer: Writer) -> Float[Tensor, "d_model"]:
        if writer.kind in OFFSETS:
            return torch.zeros_like(self.local[0, 0])
        if writer.kind != "head":
            return self.local[self._slot[writer.kind, writer.layer], writer.dest]
        assert writer.head is not None
        index = self.attention_layers.index(writer.layer)
        A = self.patterns.weight(index, writer.head, writer.dest, writer.src)
        moved = self.values[index, writer.head, writer.src] @ self.weights(writer.layer).W_O[writer.head]
        return moved * (A / float(self.out_scale[index, writer.dest]))

    @cached_property
    def _below(self) -> list[tuple[int, int]]:
        found = []
        for layer in range(len(self.run.layers) + 1):
            heads = sum(1 for other in self.attention_layers if other < layer)
            local = sum(1 for kind, other in self.local_slots if kind == "embedding" or other < layer)
            found.append((heads, local))
        return found

    def below(self, layer: int) -> tuple[int, int]:
        """How many attention layers and how many local writers lie below a layer."""
        return self._below[layer]

    def writer(self, component: int, layer: int, head: int, token: int) -> Writer:
        """Which writer is this flat component of a firing of `head`, as seen at `token`?"""
        n_layers, n_local = self.below(layer)
        n = len(self.run)
        moved = n_layers * self.patterns.n_heads * n
        if component < moved:
            index, rest = divmod(component, self.patterns.n_heads * n)
            other, source = divmod(rest, n)
            return Writer("head", self.attention_layers[index], other, token, source)
        if component < moved + n_local:
            kind, other_layer = self.local_slots[component - moved]
            return Writer(kind, other_layer, None, token, token)
        return Writer("offset", layer, head, token, token)


@dataclass(frozen=True)
class Reads:
    """What one head reads of everything below it. Without RoPE already in channel coordinates."""

    head: int
    q_moved: Float[Tensor, "layers heads pos read"]
    k_moved: Float[Tensor, "layers heads pos read"]
    q_local: Float[Tensor, "local pos read"]
    k_local: Float[Tensor, "local pos read"]


def reads_of(writes: Writes, layer: int, heads: list[int]) -> list[Reads]:
    """Project everything below a layer onto the queries and keys of some of its heads, in one product."""
    w, om = writes.weights(layer), writes.omega(layer)
    rotates = writes.run.layer(layer).rotary is not None
    n_layers, n_local = writes.below(layer)
    kv_heads = sorted({w.kv(h) for h in heads})
    if rotates:  # rotation comes between the projection and the channels
        q_side, k_side = w.W_Q[heads], w.W_K[kv_heads]
    else:
        q_side = w.W_Q[heads] @ om.G_d[heads]
        k_side = w.W_K[[w.kv(h) for h in heads]] @ om.G_s[heads].transpose(-1, -2)
    size = q_side.shape[-1]
    W = torch.cat([q_side, k_side]).transpose(0, 1).flatten(1)  # [d_model, all columns of all heads]
    local = (writes.local[:n_local].flatten(0, 1) @ W).view(n_local, len(writes.run), -1)
    moved = _project_moved(writes, n_layers, W)
    found = []
    for index, head in enumerate(heads):
        k_index = len(heads) + (kv_heads.index(w.kv(head)) if rotates else index)
        q, k = (slice(i * size, (i + 1) * size) for i in (index, k_index))
        found.append(Reads(head, moved[..., q], moved[..., k], local[..., q], local[..., k]))
    return found


def chunks_of_heads(writes: Writes, layer: int, heads: list[int]) -> list[list[int]]:
    """Heads whose projections fit into memory together."""
    n_layers, n_local = writes.below(layer)
    rows = (n_layers * writes.patterns.n_heads + n_local) * len(writes.run)
    size = max(1, _PROJECTED_FLOATS // max(1, rows * 2 * writes.run.model.dims.d_head))
    return [heads[i : i + size] for i in range(0, len(heads), size)]


def composing_is_cheaper(n: int, d_model: int, d_head: int) -> bool:
    """Per pair of heads: d r^2 + T r^2 multiplications with W_O W_Q composed first, T d r without."""
    return d_model * d_head + n * d_head < n * d_model


def _project_moved(writes: Writes, n_layers: int, W: Tensor) -> Float[Tensor, "layers heads pos cols"]:
    n, dims = len(writes.run), writes.run.model.dims
    if n_layers == 0:
        return W.new_zeros(0, dims.heads, n, W.shape[-1])
    if not composing_is_cheaper(n, dims.d_model, dims.d_head):
        return (writes.moved[:n_layers].flatten(0, 2) @ W).view(n_layers, dims.heads, n, -1)
    projected = W.new_empty(n_layers, dims.heads, n, W.shape[-1])
    for index in range(n_layers):
        W_O = writes.weights(writes.attention_layers[index]).W_O
        torch.matmul(writes.values[index], W_O @ W, out=projected[index])
    return projected
