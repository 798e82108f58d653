"""What is the answer without some writers, or with them alone? Measured in the model's own pass, or to first order.

Everything else is recomputed. So this is the effect of a place, not the claim of a circuit: other paths may make up for
what is gone.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.circuits.records import OFFSETS, Kind, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.removal import Metric
from keyhole.intervene.rerun import Edits, WriterEdit, rerun, rerun_each
from keyhole.intervene.silence import Silence
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import values_of, written_by

if TYPE_CHECKING:
    from keyhole.models.run import Run

Vectors = Mapping[Writer, Float[Tensor, "d_model"]]


def answers_without(
    run: "Run",
    sets: Sequence[Collection[Writer]],
    metric: Metric,
    *,
    instead: Vectors | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """What is the answer when some writers write nothing?

    Args:
        run: The prompt.
        sets: Sets of writers; each is silenced in a copy of the prompt.
        metric: What the answer is measured by.
        instead: What some of the writers write instead of nothing, such as `mean_writes(runs)`.
        progress: Called with the number of copies done and their total.

    Returns:
        The metric of each copy.

    >>> import keyhole
    >>> from keyhole.intervene import Metric, answers_without
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> metric = Metric(len(run) - 1, (int(run.logits[-1].argmax()),))
    >>> (unchanged,) = answers_without(run, [[]], metric)
    >>> abs(unchanged - metric.of(run.logits[-1])) < 1e-4
    True
    """
    run._require_fresh()
    last = metric.at == len(run) - 1
    with exact_matmul():
        copies = [Edits(silences=_silences(run, members, instead or {})) for members in sets]
        answers = dict[int, float]()
        for i, result, copy in rerun_each(run, copies, progress, all_logits=not last):
            answers[i] = metric.of(result.logits(run, copy, metric.at))
    return [answers[i] for i in range(len(sets))]


def all_but(run: "Run", members: Collection[Writer]) -> list[Writer]:
    """All places but these: without them, only these write, and embeddings and biases as ever.

    Args:
        run: The run of the prompt.
        members: The writers that go on writing.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> len(places(run)) - len(all_but(run, list(places(run))[:3]))
    3
    """
    chosen = frozenset(members)
    return [writer for writer in places(run) if writer not in chosen]


def places(run: "Run") -> list[Writer]:
    """Every writer that does something with the prompt: MLPs, mixers, and heads by the two tokens they join.

    Args:
        run: The run of the prompt.

    >>> import keyhole
    >>> sorted({place.kind for place in places(keyhole.load().run("Mary met John"))})
    ['head', 'mlp']
    """
    writers = []
    for layer, record in enumerate(run.layers):
        if record.attention is not None:
            pairs = record.attention.visible().nonzero().tolist()
            writers += [Writer("head", layer, h, dest, src) for h in record.attention.heads for dest, src in pairs]
        kinds: list[Kind] = ["mlp"] if record.mixer is None else ["mixer", "mlp"]
        writers += [Writer(kind, layer, None, t, t) for kind in kinds for t in range(len(run))]
    return writers


def _silences(run: "Run", members: Collection[Writer], instead: Vectors) -> tuple[Silence, ...]:
    """The silences that take a set of writers away, one for each kind and layer."""
    groups: dict[tuple[Kind, int], list[Writer]] = defaultdict(list)
    for writer in members:
        if writer.kind in OFFSETS:
            raise KeyholeError(
                "an offset is its reader's own constant and is written nowhere: it cannot be taken away."
            )
        groups[writer.kind, writer.layer].append(writer)
    return tuple(_silence(run, *key, group, instead) for key, group in groups.items())


def _silence(run: "Run", kind: Kind, layer: int, group: list[Writer], instead: Vectors) -> Silence:
    resid, n = run.layers[0].resid, len(run)
    heads = kind == "head"
    off = torch.zeros((run.model.dims.heads, n, n) if heads else n, dtype=torch.bool, device=resid.device)
    at = [(w.head, w.dest, w.src) if heads else (w.dest,) for w in group]
    off[tuple(torch.tensor(at, device=resid.device).T)] = True
    given = [writer for writer in group if writer in instead]
    if not given:
        return Silence(kind, layer, off)
    total = torch.zeros_like(resid, dtype=run.final_scale.dtype)
    dests = torch.tensor([writer.dest for writer in given], device=resid.device)
    total.index_add_(0, dests, torch.stack([instead[writer] for writer in given]).to(total))
    return Silence(kind, layer, off, total)


# What would the answer lose without each writer, to first order? All writers at once, from one pass back.
#
#     loss of w = g . (o_w - o'_w),   g = d metric / d (what is written at that place)
#
# with o'_w nothing ("gradient times write"), or what the same writer wrote in another run ("attribution patching").
# It is exact for a change that is small; taking all of a write away is not.

Gradients = dict[tuple[str, int], Float[Tensor, "pos d_model"]]  # by block (as in WriterEdit) and layer


@dataclass(frozen=True)
class Estimates:
    """Every writer's loss, to first order: heads by layer (of those with attention), head, dest and src."""

    __repr__ = brief

    attention_layers: tuple[int, ...]
    slots: tuple[tuple[Kind, int], ...]  # (kind, layer) of the writers with one write per token
    heads: Float[Tensor, "layers heads dest src"]
    local: Float[Tensor, "slot pos"]

    def of(self, writer: Writer) -> float:
        """One writer's loss.

        Args:
            writer: The writer.
        """
        if writer.kind == "head":
            index = self.attention_layers.index(writer.layer)
            return float(self.heads[index, writer.head, writer.dest, writer.src])
        if (writer.kind, writer.layer) not in self.slots:
            raise KeyholeError(f"there is no {writer.kind} in layer {writer.layer} that writes.")
        return float(self.local[self.slots.index((writer.kind, writer.layer)), writer.dest])


def estimate(run: "Run", metric: Metric, other: "Run | None" = None) -> Estimates:
    """What would the answer lose if each writer wrote nothing? To first order, for all writers at once.

    Args:
        run: The prompt.
        metric: What the answer is measured by.
        other: Another run of as many tokens: writers write what they wrote there ("attribution patching") instead of
            nothing ("gradient times write").

    Returns:
        `Estimates`: `of(writer)` is the loss of one, `heads` and `local` have all.

    >>> import keyhole
    >>> from keyhole.intervene import Metric, estimate
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> tuple(estimate(run, Metric(len(run) - 1, (7,))).heads.shape)[0] == len(run.model.attention_layers)
    True
    """
    if not metric.targets:
        raise KeyholeError("without targets there is no answer that could lose anything: name some.")
    if other is not None and len(other) != len(run):
        raise KeyholeError(
            f"the runs have {len(run)} and {len(other)} tokens: writers are matched token by token, so give two runs "
            "of equal length."
        )
    writes, gradients = Writes([run]), _gradients(run, metric)
    with exact_matmul():
        heads, local = _along(writes, gradients)
        if other is not None:
            other._require_fresh()
            heads_there, local_there = _along(Writes([other]), gradients)
            heads, local = heads - heads_there, local - local_there
    return Estimates(tuple(writes.attention_layers), tuple(writes.local_slots), heads, local)


def _gradients(run: "Run", metric: Metric) -> Gradients:
    """The metric's gradient by what each block writes at each token: a pass with nothing added, and one back."""
    run._require_fresh()
    blocks = [("embedding", 0)]
    for layer, record in enumerate(run.layers):
        blocks += [("attention", layer)] if record.attention is not None else []
        blocks += [("mixer", layer)] if record.mixer is not None else []
        blocks += [("mlp", layer)]
    with torch.inference_mode(False), torch.enable_grad():
        nothing = [torch.zeros_like(run.layers[0].resid, dtype=run.final_scale.dtype) for _ in blocks]
        edits = [WriterEdit(*block, zero.requires_grad_()) for block, zero in zip(blocks, nothing, strict=True)]
        result = rerun(run, [Edits(writers=tuple(edits))], gradients=True)
        by_block = torch.autograd.grad(metric.value(result.captured.logits[0, metric.at]), nothing)
    return dict(zip(blocks, by_block, strict=True))


def _along(writes: Writes, gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Every writer of a run read along the gradient at its place, g . o_w: heads, and others."""
    block = {"bias": "attention"}
    local = [
        (vectors * gradients[block.get(kind, kind), layer]).sum(-1)
        for (kind, layer), vectors in zip(writes.local_slots, writes.local[0], strict=True)
    ]
    run = writes.runs[0]
    heads = []
    for index, layer in enumerate(writes.attention_layers):
        record, g = run.attention_run(layer), gradients["attention", layer]
        read = torch.einsum("hrd,td->htr", writes.folded(layer).W_O, g) @ writes.values[0, index].mT
        heads.append(record.weights(record.heads, range(len(run))) * read / record.out_scale[:, None])
    return torch.stack(heads).double(), torch.stack(local).double()


# What do writers write on average over prompts that are alike, token by token? For writing that instead of nothing.


def mean_writes(runs: Sequence["Run"]) -> dict[Writer, Float[Tensor, "d_model"]]:
    """The mean write of every place over runs of one model that have as many tokens.

    A vector for each head and pair of tokens: for prompts of tens of tokens, not of hundreds.

    Args:
        runs: Runs of one model, of equal length.

    >>> import keyhole
    >>> runs = keyhole.load().run_many(["Mary met John", "Anna met Paul"])
    >>> len(mean_writes(runs)) == len(places(runs[0]))
    True
    """
    if not runs:
        raise KeyholeError("there are no runs to take a mean of.")
    lengths = sorted({len(run) for run in runs})
    if len(lengths) > 1:
        raise KeyholeError(f"the runs have {lengths} tokens: writers are matched token by token, so give equal ones.")
    for run in runs:
        run._require_fresh()
    every = places(runs[0])
    kinds = {(writer.kind, writer.layer) for writer in every if writer.kind != "head"}
    with exact_matmul():
        heads = {layer: _heads(runs, layer) for layer in runs[0].model.attention_layers}
        others = {(kind, layer): _others(runs, kind, layer) for kind, layer in kinds}
    return {
        w: heads[w.layer][w.head, w.dest, w.src] if w.kind == "head" else others[w.kind, w.layer][w.dest] for w in every
    }


def _heads(runs: Sequence["Run"], layer: int) -> Float[Tensor, "heads dest src d_model"]:
    """Means of A_tb (v_b - b_V) W_O / m_t, which is linear in what stands before W_O."""
    w = runs[0].model.folded(layer)
    mixed = []
    for run in runs:
        record = run.attention_run(layer)
        A = record.weights(record.heads, range(len(run))) / record.out_scale[:, None]
        mixed.append(A[..., None] * values_of(record, w)[:, None])
    return torch.stack(mixed).mean(0) @ w.W_O[:, None]


def _others(runs: Sequence["Run"], kind: Kind, layer: int) -> Float[Tensor, "pos d_model"]:
    every = range(len(runs[0]))
    return torch.stack([written_by(run, Writer(kind, layer, None, 0, 0), every) for run in runs]).mean(0)
