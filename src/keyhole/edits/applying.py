"""How are edits applied in the model's own forward passes, with or without a KV cache?

Queries and keys are edited just before the model's own attention kernel uses them. Hooks edit what blocks write.
The output of an upstream writer is recorded during the pass, so a signal is the one of the edited pass. For keys in the
cache it was recorded in the pass that added their token. Weights are never changed, and hooks are removed when the
context ends.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from keyhole.brief import Head
from keyhole.circuits.records import SideName
from keyhole.edits.checks import places_of, require_edits
from keyhole.edits.records import CauseEdit, Edit, Source, WriteEdit
from keyhole.edits.scores import Queries, Tokens, edited_scores, mask_of, score_terms
from keyhole.errors import KeyholeError
from keyhole.intervene.rerun import on_mlp_input
from keyhole.intervene.silence import on_write
from keyhole.models import attention
from keyhole.models.attention import default_scaling, weights_of
from keyhole.models.capture import (
    Notes,
    alone,
    attention_named,
    frozen_scale,
    mlp_writes,
    qk_scale,
    read_attention,
    rotary_of,
    watch_layer,
)
from keyhole.models.facts import Rotary
from keyhole.models.mlps import NoMlp
from keyhole.models.weights import LayerWeights, optional, submodule

if TYPE_CHECKING:
    from keyhole.models.model import Model

_NAME = "keyhole_edited_"  # followed by the name of the attention implementation that is wrapped


@contextmanager
def edited(model: "Model", edits: Sequence[Edit]) -> Iterator[None]:
    """Apply edits to every forward pass within this context: `model.run`, transformers' `generate`, or your own code.

    Args:
        model: The model whose queries, keys and writes are edited.
        edits: The edits. One with a factor of 1 is skipped, so the output is bit-identical.

    Positions count from the first token of the input, and continue across passes with a cache. Beam search and static
    caches are not supported.

    >>> import keyhole
    >>> from keyhole.edits import Source, WriteEdit, edited
    >>> model = keyhole.load()
    >>> with edited(model, [WriteEdit(writer=Source("head", 3, 6))]):
    ...     run = model.run("When Mary and John went to the store, John gave a drink to")
    >>> print(*run.edits)
    head 3.6 x 0
    """
    require_edits(model, edits)
    active = tuple(edit for edit in edits if not edit.changes_nothing)
    if not active:
        yield
        return
    if id(model.hf) in attention.edits_of:
        raise KeyholeError("this model is being edited already: give all edits at once.")
    with ExitStack() as stack:
        stack.enter_context(alone(model.hf))
        editing = Editing(model, active)
        editing.install(stack)
        attention.edits_of[id(model.hf)] = active
        stack.callback(attention.edits_of.pop, id(model.hf))
        yield


class Editing:
    """The state of active edits: what a pass records, and what is changed. It is an `Editor` and a `Reading`."""

    def __init__(self, model: "Model", edits: Sequence[Edit]) -> None:
        self.model, self.edits = model, edits
        self.notes = [Notes(block, optional(block, model.family.attn)) for block in model.blocks]
        self.layer_of = {id(notes.attn): layer for layer, notes in enumerate(self.notes) if notes.attn is not None}
        scored = [edit for edit in edits if edit.head_edited is not None]
        self.terms = {
            layer: [score_terms(model, edit) for edit in scored if edit.first_layer == layer]  # type: ignore[arg-type]
            for layer in {edit.first_layer for edit in scored}
        }
        self.weights: dict[int, LayerWeights] = {}
        self.offset, self.n, self.n_keys = 0, 0, 0
        self._kept: dict[int, Tensor] = {}  # id of an edit -> what was computed for every key so far
        self._compared: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> edited queries and keys of the last pass
        self._mixed: dict[int, Tensor] = {}  # layer -> input of its output projection
        self._moved: dict[Source, Tensor] = {}  # a head's attention-weighted values from chosen tokens, less value bias
        self._mass: dict[Source, Tensor] = {}  # sum of a head's attention weights; for a bias, of every head's
        self._streams: dict[int, Tensor] = {}  # layer -> input of the norm before its MLP

    # -- what must be recorded ------------------------------------------------------------------------------------

    @property
    def sources(self) -> list[Source]:
        """Writers whose output must be recorded."""
        signals = [term.edit.writer for terms in self.terms.values() for term in terms if hasattr(term.edit, "writer")]
        causes = [writer for edit in self.edits if isinstance(edit, CauseEdit) for writer in edit.writers]
        return [*signals, *causes]

    @property
    def moving(self) -> list[Source]:
        """Writers that need attention weights: heads restricted to some src; with sinks, all heads and biases."""
        written = [edit.writer for edit in self.edits if isinstance(edit, WriteEdit)]
        attending = [source for source in [*self.sources, *written] if source.kind in ("head", "bias")]
        return [source for source in attending if not source.src.everywhere or self._has_sinks(source.layer)]

    def _has_sinks(self, layer: int) -> bool:
        return getattr(self.notes[layer].attn, "sinks", None) is not None

    # -- installing ----------------------------------------------------------------------------------------

    def install(self, stack: ExitStack) -> None:
        """Install hooks on the model; the stack removes them."""
        family, hf = self.model.family, self.model.hf
        base = submodule(hf, family.layers.rpartition(".")[0])
        stack.callback(base.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
        for edit in self.edits:
            if isinstance(edit, WriteEdit):
                kind = "attention" if edit.writer.kind == "head" else edit.writer.kind
                on_write(stack, self.model, self.notes[edit.writer.layer], kind, self._written(edit))
        for layer in self._mixing_layers():
            attn = self.notes[layer].attn
            assert attn is not None
            out = submodule(attn, family.out)
            stack.callback(out.register_forward_pre_hook(self._mixes(layer)).remove)
        for layer in self._noted_layers():
            watch_layer(stack, self.notes[layer], family)
        for edit in self.edits:
            if isinstance(edit, CauseEdit):
                self._edit_causes(stack, edit)
        for layer in {*self.terms, *(source.layer for source in self.moving)}:
            stack.enter_context(_edits(self.notes[layer].attn, self))
        if family.routed:
            stack.enter_context(attention_named(hf, _registered(hf, eager=bool(self.moving))))

    def _mixing_layers(self) -> list[int]:
        """Layers where the input of the output projection is recorded.

        Families that do not use transformers' AttentionInterface need it for edited layers too.
        """
        written = [edit.writer for edit in self.edits if isinstance(edit, WriteEdit)]
        layers = {source.layer for source in [*self.sources, *written] if source.kind == "head"}
        return sorted(layers if self.model.family.routed else layers | set(self.terms))

    def _noted_layers(self) -> list[int]:
        """Layers whose activations are recorded in the pass."""
        written = [edit.writer for edit in self.edits if isinstance(edit, WriteEdit)]
        return sorted({0, *self.terms, *(source.layer for source in [*self.sources, *written])})

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """At the start of a pass, count the tokens in the cache and the new ones; refuse what edits do not support."""
        past = kwargs.get("past_key_values")
        given = kwargs.get("input_ids", args[0] if args else None)
        given = kwargs["inputs_embeds"] if given is None else given
        self.offset, self.n = 0 if past is None else int(past.get_seq_length()), given.shape[1]
        self._compared.clear()
        if self.offset and not self.model.family.routed:
            raise KeyholeError(
                f"{self.model.name} does not attend through transformers' AttentionInterface, so that edits need "
                "passes without a cache: give use_cache=False."
            )
        padded = kwargs.get("attention_mask")
        named = any(not place.everywhere for edit in self.edits for place in places_of(edit))
        if named and not self.offset and torch.is_tensor(padded) and padded.ndim == 2 and not bool(padded.all()):
            raise KeyholeError("these edits name tokens by position, which padding moves: run prompts one at a time.")

    # -- an editor of queries and keys ---------------------------------------------------------------------

    def edited(self, module: nn.Module, q: Tensor, k: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """The edited queries and keys of a layer, which attention uses in place of q and k."""
        layer = self.layer_of[id(module)]
        if layer not in self.terms:
            return q, k
        total, self.n_keys = self.offset + q.shape[2], k.shape[2]
        if self.n_keys > total:
            raise KeyholeError("the cache has room for tokens to come, which edits do not support: use a dynamic one.")
        at = torch.arange(total, device=q.device)
        tokens = Tokens(at[self.offset :], at[total - self.n_keys :])
        return edited_scores(q, k, self.terms[layer], self, tokens=tokens, scaling=scaling)

    def compared(self, module: nn.Module, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The edited queries and keys of the last pass, or q and k where nothing was edited."""
        return self._compared.get(self.layer_of[id(module)], (q, k))

    def attended(self, module: nn.Module, weights: Callable[[list[int]], Tensor], v: Tensor) -> None:
        """Record what heads moved from chosen tokens, and the sums of their attention weights."""
        layer = self.layer_of[id(module)]
        for source in (source for source in self.moving if source.layer == layer):
            w = self._weights(layer)
            if source.head is None:
                every = weights(list(range(self.model.dims.heads)))
                self._mass[source] = every.sum(-1).transpose(1, 2).to(w.b_V.dtype)
            else:
                A = weights([source.head])[:, 0].to(w.b_V.dtype)
                keys = torch.arange(self.offset + self.n, device=A.device)[-A.shape[-1] :]
                A = A * mask_of(source.src, keys)
                value = v[:, w.kv(source.head)].to(w.b_V.dtype) - w.b_V[w.kv(source.head)]
                self._moved[source], self._mass[source] = A @ value, A.sum(-1, keepdim=True)

    # -- a reading of the pass -----------------------------------------------------------------------------

    def part(self, source: Source, head: Head, side: SideName) -> Queries:
        """The part of a head's rotated query (dest) or key (src) that a writer contributes, at this pass's tokens."""
        layer, index = head
        family, dims, notes, w = self.model.family, self.model.dims, self.notes[layer], self._weights(layer)
        attn, resid = notes.attn, notes.resid
        assert attn is not None and resid is not None
        if side == "dest":
            at, scale, W, b, c = index, qk_scale(notes, attn, family, dims.heads), w.W_Q, w.b_Q, w.c_Q
            if family.q_factor is not None:
                positions = torch.arange(self.offset, self.offset + self.n, device=resid.device)
                scale = scale * family.q_factor(attn, positions).to(scale.dtype)
        else:
            at, scale, W, b, c = w.kv(index), qk_scale(notes, attn, family, dims.kv_heads, side=1), w.W_K, w.b_K, w.c_K
        scale = scale[:, at, :, None].to(W.dtype)
        if source.kind == "offset":
            read = scale * b[at] + c[at]
        else:
            norm = frozen_scale(optional(notes.block, family.attn_norm), resid, family)
            read = scale * (self.write(source) @ W[at]) / norm[..., None].to(W.dtype)
        rotary = self.rotary(layer)
        return read if rotary is None else rotary.rotate(read)

    def rotary(self, layer: int) -> Rotary | None:
        """The RoPE rotation of a layer at the tokens of this pass."""
        notes = self.notes[layer]
        return rotary_of(notes.attn, notes, self.model.family)

    def all_keys(self, edit: Edit, new: Tensor) -> Tensor:
        """`new`, after the same numbers for keys in the cache, which were kept when their tokens were added."""
        kept = self._kept.get(id(edit))
        if self.offset:
            if kept is None or kept.shape[1] < self.offset or kept.shape[0] != new.shape[0]:
                raise KeyholeError("the cache has tokens that were added before this edit: start with an empty cache.")
            new = torch.cat([kept[:, : self.offset], new], dim=1)
        self._kept[id(edit)] = new
        return new[:, new.shape[1] - self.n_keys :]

    def write(self, source: Source) -> Float[Tensor, "batch query d_model"]:
        """What a writer added to the residual stream at the tokens of this pass."""
        notes, family = self.notes[source.layer], self.model.family
        dtype = self._weights(self.model.attention_layers[0]).W_Q.dtype
        if source.kind == "embedding":
            assert self.notes[0].resid is not None
            return self.notes[0].resid.to(dtype)
        if source.kind in ("mlp", "mixer"):
            written = mlp_writes(notes, family, self.model.hf.config) if source.kind == "mlp" else notes.mixer
            assert written is not None
            return written.to(dtype)
        w = self._weights(source.layer)
        attn_out = notes.resid if notes.attn_out is None else notes.attn_out
        assert attn_out is not None
        scale = frozen_scale(optional(notes.block, family.post_attn_norm), attn_out, family)[..., None]
        if source.kind == "bias":
            per_head = (w.b_V.repeat_interleave(w.group, dim=0)[:, None] @ w.W_O)[:, 0]
            constant = self._mass[source] @ per_head if self._has_sinks(source.layer) else per_head.sum(0)
            return (w.b_O + constant).expand(*scale.shape[:2], -1) / scale
        assert source.head is not None
        return self._moved_by(source, self._mixed[source.layer]) @ w.W_O[source.head] / scale

    def _moved_by(self, source: Source, z: Tensor) -> Float[Tensor, "batch query d_head"]:
        """A head's attention-weighted values from the source's tokens, without the part of the value bias."""
        assert source.head is not None
        w, d = self._weights(source.layer), self.model.dims.d_head
        if not source.src.everywhere:
            return self._moved[source]
        whole = z[..., source.head * d : (source.head + 1) * d].to(w.b_V.dtype)
        mass = self._mass[source] if self._has_sinks(source.layer) else 1.0
        return whole - mass * w.b_V[w.kv(source.head)]

    def _weights(self, layer: int) -> LayerWeights:
        """Folded weights, computed once: within the context no weight changes."""
        if layer not in self.weights:
            self.weights[layer] = self.model.folded(layer)
        return self.weights[layer]

    # -- what is written -----------------------------------------------------------------------------------

    def _mixes(self, layer: int) -> Callable[[nn.Module, Any], Any]:
        """The hook before the output projection, whose input is the heads' attention-weighted values."""

        def before(module: nn.Module, args: Any) -> Any:
            z = args[0].view(-1, self.n, args[0].shape[-1])
            if not self.model.family.routed:
                z = self._attend_again(layer, z)
            self._mixed[layer] = z
            return (z.view(args[0].shape), *args[1:])

        return before

    def _attend_again(self, layer: int, z: Tensor) -> Tensor:
        """Recompute edited heads of a family that does not use transformers' AttentionInterface."""
        notes, family, dims = self.notes[layer], self.model.family, self.model.dims
        attn = notes.attn
        assert attn is not None
        q, k, v, first, rule, _ = read_attention(notes, attn, family, dims)
        q_edited, k_edited = self.edited(attn, q, k, rule.scaling)
        self._compared[layer] = (q_edited, k_edited)
        self.attended(attn, lambda heads: weights_of(q_edited, k_edited, first, rule, heads), v)
        z, d, group = z.clone(), dims.d_head, dims.heads // dims.kv_heads
        for head in sorted({term.edit.head[1] for term in self.terms.get(layer, ())}):
            A = weights_of(q_edited, k_edited, first, rule, [head])[:, 0]
            z[..., head * d : (head + 1) * d] = (A @ v[:, head // group].to(A.dtype)).to(z.dtype)
        return z

    def _written(self, edit: WriteEdit) -> Callable[[Tensor, float], Tensor]:
        """The edited output of a block; an edited head is one term of that output."""

        def changed(x: Tensor, by: float) -> Tensor:
            rows = x.view(-1, self.n, self.model.dims.d_model)
            write = self.write(edit.writer) / by if edit.writer.kind == "head" else rows
            return (rows + ((edit.factor - 1) * self._at(edit) * write).to(x.dtype)).view(x.shape)

        return changed

    def _edit_causes(self, stack: ExitStack, edit: CauseEdit) -> None:
        """Hook the input of an MLP, and change it by the edited causes."""
        notes, weights = self.notes[edit.layer], self.model.mlp(edit.layer)
        if isinstance(weights, NoMlp):
            raise KeyholeError(f"causes of the MLP of layer {edit.layer} cannot be edited: {weights.reason}.")
        if weights.norm is not None:

            def note(module: nn.Module, args: Any) -> None:
                self._streams[edit.layer] = args[0]

            stack.callback(weights.norm.register_forward_pre_hook(note).remove)

        def changed(x: Tensor) -> Tensor:
            rows = x.view(-1, self.n, x.shape[-1])
            read = weights.read(torch.stack([self.write(writer) for writer in edit.writers]).sum(0))
            if weights.norm is not None:
                read = read / frozen_scale(weights.norm, self._streams[edit.layer], self.model.family)[..., None]
            return (rows + ((edit.factor - 1) * self._at(edit) * read).to(x.dtype)).view(x.shape)

        on_mlp_input(stack, self.model, notes, changed)

    def _at(self, edit: Edit) -> Float[Tensor, "query 1"]:
        """A mask over the tokens of this pass: one where the edit applies, zero elsewhere."""
        positions = torch.arange(self.offset, self.offset + self.n, device=self.model.device)
        return mask_of(edit.dest, positions)[:, None].float()


@contextmanager
def _edits(module: nn.Module | None, editing: Editing) -> Iterator[None]:
    attention.editors[id(module)] = editing
    try:
        yield
    finally:
        del attention.editors[id(module)]


# The attention implementation that the model uses, called with edited queries and keys.


def _registered(hf: Any, *, eager: bool) -> str:
    """Register the wrapped attention function and return its name.

    `eager`: attention weights are needed, which other implementations do not return.
    """
    base = "eager" if eager else str(hf.config._attn_implementation)
    if base.startswith(_NAME):
        raise KeyholeError("this model is being edited already: give all edits at once.")

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **more: Any) -> Any:
        function = _function(base, module)
        editor = attention.editors.get(id(module))
        if editor is None:
            return function(module, q, k, v, mask, **more)
        if more.get("scaling") is None:  # kernels infer it from the width of q, and edits may append coordinates
            more["scaling"] = default_scaling(module, q)
        q, k = editor.edited(module, q, k, float(more["scaling"]))
        width = v.shape[-1]
        out, weights = function(module, *_padded(base, q, k, v), mask, **more)
        if weights is not None:
            editor.attended(module, lambda heads: weights[:, heads], v)
        return out[..., :width], weights

    AttentionInterface.register(_NAME + base, attend)
    AttentionMaskInterface.register(_NAME + base, ALL_MASK_ATTENTION_FUNCTIONS[base])
    return _NAME + base


def _padded(base: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad for flash kernels, which need the same width for q, k and v, a multiple of eight."""
    if "flash" not in base or q.shape[-1] == v.shape[-1]:
        return q, k, v
    width = -(-q.shape[-1] // 8) * 8
    q, k, v = (nn.functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    return q, k, v


def _function(base: str, module: nn.Module) -> Callable[..., Any]:
    """An attention function by its name; the eager one is defined in the module of the model's own code."""
    if base != "eager":
        function: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS[base]
        return function
    beside = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if beside is None:
        raise KeyholeError(f"{type(module).__name__} has no eager attention beside it, which this edit needs.")
    return beside  # type: ignore[no-any-return]
