"""What is an answer without some writers, or with them alone? In the model's own pass, where everything else is free.

This is the effect of a place, not the claim of a circuit: other paths may make up for what is gone.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import OFFSETS, Kind, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Metric
from keyhole.intervene.rerun import Edits, rerun_each
from keyhole.intervene.silence import Silence
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress

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
    """The metric with each set of writers gone, or writing what is given `instead`, whatever they read."""
    run.require_fresh()
    last = metric.end == len(run) - 1
    with exact_matmul():
        copies = [Edits(silences=_silences(run, members, instead or {})) for members in sets]
        found = dict[int, float]()
        for i, result, copy in rerun_each(run, copies, progress, all_logits=not last):
            found[i] = metric.of(result.logits(run, copy, metric.end))
    return [found[i] for i in range(len(sets))]


def all_but(run: "Run", members: Collection[Writer]) -> list[Writer]:
    """All places but these: without them, only these write, and embeddings and biases as ever."""
    chosen = frozenset(members)
    return [writer for writer in places(run) if writer not in chosen]


def places(run: "Run") -> list[Writer]:
    """Every writer that does something with the prompt: MLPs, mixers, and heads by the two tokens they join."""
    found = []
    for layer, record in enumerate(run.layers):
        if record.attention is not None:
            pairs = record.attention.visible().nonzero().tolist()
            found += [Writer("head", layer, h, dest, src) for h in record.attention.heads for dest, src in pairs]
        kinds: list[Kind] = ["mlp"] if record.mixer is None else ["mixer", "mlp"]
        found += [Writer(kind, layer, None, t, t) for kind in kinds for t in range(len(run))]
    return found


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
