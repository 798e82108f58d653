"""How does the model answer with some signals gone? Its own forward pass, many edited copies in one batch.

Layers below the first change are not computed again: their blocks are bypassed and the captured residual stream is put
in. Edits to a head's scores, query or keys are made where its mixed values enter the output projection: rows of that
head are recomputed from the q and k of this very pass, so other heads (GQA siblings too) are untouched and every
architecture is served alike.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from keyhole.intervene.silence import Silence, on_write, silence_layer
from keyhole.models.capture import Captured, Notes, attention_batch, capture, mlp_writes
from keyhole.models.facts import mlp_facts
from keyhole.models.run import AttentionRun
from keyhole.models.stacks import cut_attention
from keyhole.models.weights import optional, submodule
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

_BATCH_TOKENS = 1024


@dataclass(frozen=True)
class HeadEdit:
    """A change of one head in one copy of the prompt."""

    layer: int
    head: int
    row: tuple[int, Float[Tensor, "pos"]] | None = None  # add to the scores of one destination
    query: tuple[int, Float[Tensor, "d_head"]] | None = None  # add to the rotated query of one token
    keys: Float[Tensor, "pos d_head"] | None = None  # add to the rotated keys, for this query head alone


@dataclass(frozen=True)
class WriterEdit:
    """A change of what a writer adds to the residual stream in one copy of the prompt."""

    kind: str  # embedding, attention, mixer, mlp
    layer: int
    delta: Float[Tensor, "pos d_model"]


@dataclass(frozen=True)
class MlpEdit:
    """A change of what one MLP reads, after its norm, in one copy of the prompt."""

    layer: int
    delta: Float[Tensor, "pos d_model"]


@dataclass(frozen=True)
class Edits:
    """All changes of one copy of the prompt."""

    heads: tuple[HeadEdit, ...] = ()
    writers: tuple[WriterEdit, ...] = ()
    mlps: tuple[MlpEdit, ...] = ()
    silences: tuple[Silence, ...] = ()

    @property
    def first_layer(self) -> int:
        """The first layer that must be computed again."""
        layers = [e.layer for e in self.heads] + [e.layer for e in self.writers] + [e.layer for e in self.mlps]
        return min(layers + [e.layer for e in self.silences], default=1 << 30)


@dataclass
class Rerun:
    """The result of an edited pass: logits of every copy, and the attention of edited heads."""

    captured: Captured
    attention: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)  # (copy, layer, head) -> [pos, pos]
    mlps: dict[tuple[int, int], Tensor] = field(
        default_factory=dict
    )  # (copy, layer) -> what W_out gives, [pos, d_model]

    def weights(self, run: "Run", copy: int, layer: int, head: int) -> Float[Tensor, "pos pos"]:
        """The attention of one head in one copy, edited or not."""
        if (copy, layer, head) in self.attention:
            return self.attention[copy, layer, head]
        notes = self.captured.layers[layer]
        assert notes.attn is not None
        record = cut_attention(attention_batch(notes, notes.attn, run.model.family, run.model.dims), copy, len(run))
        return record.weights([head], range(len(run)))[0]

    def logits(self, run: "Run", copy: int, at: int | list[int]) -> Float[Tensor, "*token vocab"]:
        """The logits at a token or some of one copy; counted from the last, which may be the only one that has some."""
        from_last = at - len(run) if isinstance(at, int) else [token - len(run) for token in at]
        return self.captured.logits[copy, from_last]

    def mlp_write(self, run: "Run", copy: int, layer: int) -> Float[Tensor, "pos d_model"]:
        """What an MLP added to the residual stream in one copy, whatever was edited."""
        return mlp_writes(self.captured.layers[layer], run.model.family, run.model.hf.config)[copy]


def rerun(run: "Run", copies: Sequence[Edits], *, all_logits: bool = True, gradients: bool = False) -> Rerun:
    """Run edited copies of a prompt in one batch, from the first changed layer on.

    Without `all_logits` only those of the last token are guaranteed. With `gradients` the pass is differentiable with
    respect to those deltas that require gradients.
    """
    start = min(min(edits.first_layer for edits in copies), len(run.layers) - 1)
    attention: dict[tuple[int, int, int], Tensor] = {}
    outs: dict[tuple[int, int], Tensor] = {}

    def prepare(stack: ExitStack, layers: tuple[Notes, ...]) -> None:
        if gradients:
            stack.enter_context(torch.enable_grad())
        _bypass(stack, run, layers, start, len(copies))
        for copy, edits in enumerate(copies):
            for edit in edits.writers:
                _edit_writer(stack, run, layers[edit.layer], edit, copy)
            for change in edits.mlps:
                _edit_mlp(stack, run, layers[change.layer], change, copy, outs)
        for layer in sorted({edit.layer for edits in copies for edit in edits.heads}):
            here = [(copy, e) for copy, edits in enumerate(copies) for e in edits.heads if e.layer == layer]
            _edit_heads(stack, run, layers[layer], here, attention)
        every = [(copy, silence) for copy, edits in enumerate(copies) for silence in edits.silences]
        for kind, layer in sorted({(silence.kind, silence.layer) for _, silence in every}):
            silent = [(copy, silence) for copy, silence in every if (silence.kind, silence.layer) == (kind, layer)]
            silence_layer(stack, run, layers[layer], silent)

    ids = torch.tensor([list(run.token_ids)] * len(copies), device=run.model.device)
    model = run.model
    captured = capture(model.hf, model.family, ids, prepare, all_logits=all_logits, head_out=model.head_out)
    return Rerun(captured, attention, outs)


def rerun_each(
    run: "Run", copies: Sequence[Edits], progress: Progress | None = None, *, all_logits: bool = True
) -> Iterator[tuple[int, Rerun, int]]:
    """Every edited copy, in batches: its index, the batch it ran in, and its row there.

    Copies are ordered by the first layer they change, so that a batch restarts as high as possible.
    """
    done = 0
    for batch in batches(run, copies):
        if progress is not None:
            progress(done, len(copies))
        result = rerun(run, [copies[i] for i in batch], all_logits=all_logits)
        for place, i in enumerate(batch):
            yield i, result, place
        done += len(batch)
    if progress is not None and copies:
        progress(len(copies), len(copies))


def batches(run: "Run", copies: Sequence[Edits]) -> list[list[int]]:
    """Which copies share a forward pass, those that change the highest layers first.

    In half precision those that begin at one layer: what is computed again below a change, in another batch, would be
    rounded in another way.
    """
    order = sorted(range(len(copies)), key=lambda i: -copies[i].first_layer)
    size = batch_size(run)
    groups = [order]
    if run.is_rounded:
        groups = [list(alike) for _, alike in groupby(order, lambda i: copies[i].first_layer)]
    return [group[start : start + size] for group in groups for start in range(0, len(group), size)]


def batch_size(run: "Run") -> int:
    """How many copies of a prompt share a forward pass."""
    return max(1, _BATCH_TOKENS // len(run))


def _bypass(stack: ExitStack, run: "Run", layers: tuple[Notes, ...], start: int, n: int) -> None:
    """Skip the layers below the first change and put in the residual stream that they would have written."""
    returns_tuple = not run.model.family.routed  # the families that predate the attention interface
    for notes in layers[:start]:
        stack.callback(setattr, notes.block, "forward", notes.block.forward)
        notes.block.forward = _same_tuple if returns_tuple else _same  # type: ignore[method-assign]
        notes.bypassed = True
    resid = run.layers[start].resid.expand(n, -1, -1).clone()

    def substitute(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if args:
            return (resid, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": resid}

    hook = layers[start].block.register_forward_pre_hook(substitute, with_kwargs=True, prepend=True)
    stack.callback(hook.remove)


def _same(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return hidden_states


def _same_tuple(hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    return hidden_states, None


def _edit_writer(stack: ExitStack, run: "Run", notes: Notes, edit: WriterEdit, copy: int) -> None:
    shape = (-1, len(run), run.model.dims.d_model)

    def changed(x: Tensor, by: float) -> Tensor:
        x = x.clone()
        x.view(shape)[copy] += (edit.delta / by).to(x.dtype)
        return x

    on_write(stack, run.model, notes, edit.kind, changed)


def _edit_mlp(
    stack: ExitStack, run: "Run", notes: Notes, edit: MlpEdit, copy: int, outs: dict[tuple[int, int], Tensor]
) -> None:
    """Change what an MLP's module is called with, and note what its last projection gives."""
    shape = (-1, len(run), run.model.dims.d_model)

    def changed(x: Tensor) -> Tensor:
        x = x.clone()
        x.view(shape)[copy] += edit.delta.to(x.dtype)
        return x

    def after(module: nn.Module, args: Any, out: Any) -> None:
        outs[copy, edit.layer] = (out[0] if isinstance(out, tuple) else out).view(shape)[copy].clone()

    last = on_mlp_input(stack, run.model, notes, changed)
    # prepended, so that the output is noted before any other hook edits it
    stack.callback(last.register_forward_hook(after, prepend=True).remove)


def on_mlp_input(stack: ExitStack, model: "Model", notes: Notes, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """Let `change` replace what a layer's MLP is called with; returns the module whose output it is then.

    A router reads what it would have read: tokens go to the same experts.
    """
    facts = mlp_facts(model.hf.config)
    assert facts is not None
    holder = submodule(notes.block, facts.module) if facts.module else notes.block
    router = optional(holder, facts.experts.router) if facts.experts is not None else None
    before: dict[str, Tensor] = {}

    def changed(module: nn.Module, args: Any) -> Any:
        before["input"] = args[0]
        return (change(args[0]), *args[1:])

    def unchanged(module: nn.Module, args: Any) -> Any:
        return (before["input"].view(args[0].shape), *args[1:])

    entry = holder if facts.module else submodule(holder, facts.up)
    stack.callback(entry.register_forward_pre_hook(changed).remove)
    if router is not None:
        # prepended: of several changes the first one knows what the router would have read, so it has the last word
        stack.callback(router.register_forward_pre_hook(unchanged, prepend=True).remove)
    return submodule(holder, facts.out) if router is None else holder


def _edit_heads(
    stack: ExitStack,
    run: "Run",
    notes: Notes,
    edits: list[tuple[int, HeadEdit]],
    attention: dict[tuple[int, int, int], Tensor],
) -> None:
    """Recompute the edited rows of z, the heads' mixed values, as they enter the output projection."""
    assert notes.attn is not None
    d_head, n = run.model.dims.d_head, len(run)

    def before(module: nn.Module, args: Any) -> Any:
        z = args[0].clone()
        assert notes.attn is not None
        batch = attention_batch(notes, notes.attn, run.model.family, run.model.dims)
        for copy, head in sorted({(copy, edit.head) for copy, edit in edits}):
            mine = [edit for c, edit in edits if (c, edit.head) == (copy, head)]
            record = cut_attention(batch, copy, n)
            weights = _edited_weights(record, head, mine)
            rows = (weights @ record.v[record.kv(head)].to(weights.dtype)).to(z.dtype)
            z.view(-1, n, z.shape[-1])[copy, :, head * d_head : (head + 1) * d_head] = rows
            attention[copy, mine[0].layer, head] = weights
        return (z, *args[1:])

    hook = submodule(notes.attn, run.model.family.out).register_forward_pre_hook(before)
    stack.callback(hook.remove)


def _edited_weights(record: AttentionRun, head: int, edits: list[HeadEdit]) -> Float[Tensor, "pos pos"]:
    dtype = record.norm_scale.dtype
    q, k = record.q[head].to(dtype).clone(), record.k[record.kv(head)].to(dtype).clone()
    for edit in edits:
        if edit.query is not None:
            q[edit.query[0]] += edit.query[1].to(dtype)
        if edit.keys is not None:
            k = k + edit.keys.to(dtype)
    scores = q @ k.T * record.rule.scaling
    for edit in edits:
        if edit.row is not None:
            scores[edit.row[0]] += edit.row[1].to(dtype)
    return record.rule.of_head(scores, record.visible(), head)
