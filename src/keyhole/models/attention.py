"""Which keys does a query see, and with which weights? The attention rule, and its registration with transformers.

`keyhole` is registered under both interfaces of transformers: the attention function sees the exact q, k, v,
scaling, softcap and sinks of every layer; its mask twin tells it which keys are visible. If only the first
were registered, transformers would drop the causal mask without a word, so `_attend_and_record` refuses to run
without what the twin makes (no other mask is made of integers).

Visibility is kept as one interval [first, last] per query. Causal, sliding-window and chunked masks all are
intervals, so this is exact and linear in the prompt length.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import transformers
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from keyhole.errors import KeyholeError
from keyhole.models.numbers import working_dtype

NAME = "keyhole"
_QUERY_BLOCK = 256  # rows of scores held at once: keeps memory linear in the prompt length


@dataclass(frozen=True)
class AttentionRule:
    """How scaled scores become weights: softcap, then a constant per key (ALiBi), then softmax with sinks."""

    scaling: float
    softcap: float | None = None
    sinks: Float[Tensor, "heads"] | None = None
    key_bias: Float[Tensor, "heads pos"] | None = None

    def cap(self, scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """c(S) = cap tanh(S / cap)."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def weights(
        self, scores: Float[Tensor, "*batch heads query key"], visible: Bool[Tensor, "*any query key"]
    ) -> Float[Tensor, "*batch heads query key"]:
        """Attention weights of scaled, uncapped scores. With sinks a row sums to less than one."""
        return self.logits(scores, visible).softmax(-1)[..., : scores.shape[-1]]

    def logits(
        self, scores: Float[Tensor, "*batch heads query key"], visible: Bool[Tensor, "*any query key"]
    ) -> Float[Tensor, "*batch heads query key_or_sink"]:
        """What softmax is taken of: one column per key, and one more for a sink."""
        bias = None if self.key_bias is None else self.key_bias[:, None, : scores.shape[-1]]
        return self._logits(scores, visible, bias, None if self.sinks is None else self.sinks[:, None, None])

    def of_head(
        self, scores: Float[Tensor, "*batch key"], visible: Bool[Tensor, "*#batch key"], head: int
    ) -> Float[Tensor, "*batch key"]:
        """Attention weights of one head, for any scaled, uncapped rows of scores."""
        bias = None if self.key_bias is None else self.key_bias[head]
        sinks = None if self.sinks is None else self.sinks[head]
        return self._logits(scores, visible, bias, sinks).softmax(-1)[..., : scores.shape[-1]]

    def of_heads(
        self, scores: Float[Tensor, "row *step key"], visible: Bool[Tensor, "row key"], heads: Int[Tensor, "row"]
    ) -> Float[Tensor, "row *step key"]:
        """The same for rows of several heads, each of its own."""
        steps, n = [1] * (scores.ndim - 2), scores.shape[-1]
        bias = None if self.key_bias is None else self.key_bias[heads, :n].view(-1, *steps, n)
        sinks = None if self.sinks is None else self.sinks[heads].view(-1, *steps, 1)
        logits = self._logits(scores, visible.view(-1, *steps, n), bias, sinks)
        return logits.softmax(-1)[..., :n]

    def _logits(self, scores: Tensor, visible: Tensor, bias: Tensor | None, sinks: Tensor | None) -> Tensor:
        logits = self.cap(scores.to(working_dtype(scores.dtype)))
        if bias is not None:
            logits = logits + bias.to(logits.dtype)
        logits = logits.masked_fill(~visible, float("-inf"))
        if sinks is None:
            return logits
        return torch.cat([logits, sinks.to(logits.dtype).expand(*logits.shape[:-1], 1)], dim=-1)

    def heads(self, heads: Any) -> "AttentionRule":
        """The same rule for some of the heads."""
        sinks = None if self.sinks is None else self.sinks[heads]
        key_bias = None if self.key_bias is None else self.key_bias[heads]
        return replace(self, sinks=sinks, key_bias=key_bias)


def visible_mask(
    first: Int[Tensor, "query"], queries: Int[Tensor, "query"], keys: Int[Tensor, "key"] | int
) -> Bool[Tensor, "query key"]:
    """True where first[i] <= key <= queries[i], for these keys or for the first so many."""
    keys = torch.arange(keys, device=first.device) if isinstance(keys, int) else keys
    return (keys >= first[:, None]) & (keys <= queries[:, None])


def window_starts(n: int, window: int | None, device: Any = None) -> Int[Tensor, "pos"]:
    """First visible key of every position under a sliding window (or none)."""
    positions = torch.arange(n, device=device)
    return torch.zeros_like(positions) if window is None else (positions - window + 1).clamp_min(0)


def attend(
    q: Float[Tensor, "batch heads pos d_head"],
    k: Float[Tensor, "batch kv_heads pos d_head"],
    v: Float[Tensor, "batch kv_heads pos d_value"],
    first: Int[Tensor, "pos"],
    rule: AttentionRule,
) -> Float[Tensor, "batch pos heads d_value"]:
    """softmax(scaling q k^T) v in blocks of queries; query head h reads KV head h // (heads / kv_heads)."""
    batch, heads, n, d_head = q.shape
    grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], n, d_head)
    positions, dtype = torch.arange(n, device=q.device), working_dtype(q.dtype)
    blocks = []
    for start in range(0, n, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, n)  # no query of the block sees a key beyond its last query
        # In half precision scores are not rounded, as in flash attention: records have the weights that were used.
        rows = grouped[:, :, :, start:stop].flatten(2, 3).to(dtype)
        scores = rows @ k[:, :, :stop].transpose(-1, -2).to(dtype) * rule.scaling
        visible = visible_mask(first[start:stop], positions[start:stop], stop)
        weights = rule.weights(scores.view(batch, heads, stop - start, stop), visible).to(q.dtype)
        mixed = weights.view(batch, k.shape[1], -1, stop) @ v[:, :, :stop]
        blocks.append(mixed.view(batch, heads, stop - start, -1))
    return torch.cat(blocks, dim=2).transpose(1, 2).contiguous()


Record = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, AttentionRule], None]
recorder: ContextVar[Record | None] = ContextVar("recorder", default=None)


@runtime_checkable
class Editor(Protocol):
    """Who edits the queries and keys of an attention module before they are compared (see `keyhole.edits`)."""

    def edited(self, module: nn.Module, q: Tensor, k: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """What is compared in place of q and k."""

    def compared(self, module: nn.Module, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """What was compared in the last pass in place of q and k, where the module itself does not ask."""

    def attended(self, module: nn.Module, weights: Callable[[list[int]], Tensor], v: Tensor) -> None:
        """Called once they were compared; `weights` gives the attention of some heads."""


editors: dict[int, Editor] = {}  # id of the attention module -> its editor: of the model, not of a thread
edits_of: dict[int, tuple[Any, ...]] = {}  # id of the Hugging Face model -> what is edited in it now


def _attend_and_record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if attention_mask is None or attention_mask.dtype != torch.long or attention_mask.shape[-1] != 1:
        raise KeyholeError(
            f"attention ran without Keyhole's mask: {NAME!r} must be registered with AttentionMaskInterface as "
            "well as with AttentionInterface, or causality is lost. Did other code replace the registration? Or does "
            f"transformers {transformers.__version__} make this architecture's masks in its own way? Then a later "
            "version helps."
        )
    first = attention_mask[0, 0, :, 0].to(query.device)
    sinks = None if s_aux is None else s_aux.detach().clone()  # a record must not follow later edits of the weights
    rule = AttentionRule(default_scaling(module, query) if scaling is None else float(scaling), softcap, sinks)
    editor = editors.get(id(module))
    if editor is not None:
        query, key = editor.edited(module, query, key, rule.scaling)
    if (record := recorder.get()) is not None:
        record(module, query, key, value, first, rule)
    if editor is not None:
        editor.attended(module, lambda heads: weights_of(query, key, first, rule, heads), value)
    return attend(query, key, value, first, rule), None


def weights_of(
    q: Float[Tensor, "batch heads pos d_head"],
    k: Float[Tensor, "batch kv_heads pos d_head"],
    first: Int[Tensor, "pos"],
    rule: AttentionRule,
    heads: list[int],
) -> Float[Tensor, "batch some pos pos"]:
    """All attention weights of some heads; quadratic in the prompt length."""
    group, n = q.shape[1] // k.shape[1], q.shape[2]
    keys = k[:, [head // group for head in heads]]
    visible = visible_mask(first, torch.arange(n, device=q.device), n)
    dtype = working_dtype(q.dtype)
    return rule.heads(heads).weights(q[:, heads].to(dtype) @ keys.mT.to(dtype) * rule.scaling, visible)


def default_scaling(module: Any, query: Tensor) -> float:
    """1 / sqrt(d_head), where transformers passes no scaling; early versions do not pass GPT-2's other choices."""
    if getattr(module, "scale_attn_by_inverse_layer_idx", False) or not getattr(module, "scale_attn_weights", True):
        raise KeyholeError(
            f"this GPT-2 scales its scores in a way that transformers {transformers.__version__} applies under eager "
            "attention only, and that Keyhole cannot read there: use a later version, which passes it."
        )
    return float(query.shape[-1] ** -0.5)


def _visible_intervals(
    *,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    q_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    cache_position: Int[Tensor, "query"] | None = None,
    attention_mask: Bool[Tensor, "batch key"] | None = None,
    device: Any = "cpu",
    **_: Any,
) -> Int[Tensor, "1 1 query 1"]:
    """First visible key of every query, from transformers' own mask function; refuses what is no interval.

    Queries are given by length and offset; before transformers 5.4 by their positions (`cache_position`). Some models
    pass a padding mask although nothing is padded.
    """
    if cache_position is not None:
        q_length, q_offset, device = len(cache_position), cache_position[0], cache_position.device
    padded = attention_mask is not None and not bool(attention_mask.all())
    if padded or q_offset or kv_offset or q_length != kv_length:
        raise KeyholeError("Keyhole reads whole prompts: no padding mask and no cache may be passed to the model.")
    keys = torch.arange(kv_length, device=device)
    first = torch.empty(q_length, dtype=torch.long, device=device)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
    for start in range(0, q_length, _QUERY_BLOCK):
        queries = keys[start : start + _QUERY_BLOCK]
        mask = mask_function(zero, zero, queries[None, None, :, None], keys[None, None, None, :])
        mask = mask.expand(1, 1, len(queries), kv_length)[0, 0]
        first[start : start + len(queries)] = mask.int().argmax(-1)
        if not torch.equal(mask, visible_mask(first[start : start + len(queries)], queries, kv_length)):
            raise KeyholeError("this model's attention mask is not one interval of past keys per query.")
    return first[None, None, :, None]


def register() -> None:
    """Make `keyhole` known to transformers as an attention implementation, mask twin included."""
    AttentionInterface.register(NAME, _attend_and_record)
    AttentionMaskInterface.register(NAME, _visible_intervals)
