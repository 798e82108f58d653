"""Which firings are explained? Of every head and prompt one on the first token and one on another, drawn at random."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.intervene.removal import Metric
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul
from keyhole.models.run import AttentionRun, Run
from keyhole.progress import Progress, silent
from keyhole.studies.directions.alike import Ambient, Moments
from keyhole.studies.directions.heard import Caused, Heard, hear, joined, of_firings
from keyhole.tracing.firing import Tau, threshold
from keyhole.tracing.upstream import Writes
from keyhole.tracing.why import explain_sites

BATCH = 8  # prompts side by side


@dataclass(frozen=True)
class StoredQuestion:
    """A prompt, and the metric of its answer."""

    number: int
    token_ids: tuple[int, ...]
    metric: Metric


@dataclass
class Listened:
    """The signals of firings on the first token and on other tokens, and what the streams have in common."""

    rest: list[Heard] = field(default_factory=list)  # on the first token, where heads rest
    other: list[Heard] = field(default_factory=list)
    moments: Moments = field(default_factory=Moments)
    firings: int = 0  # on the first token, of all prompts
    sites: int = 0  # how many firings there could be: heads times tokens after the first

    @cached_property
    def ambient(self) -> Ambient:
        """What the streams have in common."""
        return self.moments.ambient()


def layers_of(model: Model) -> list[int]:
    """The attention layers above the first, whose heads read what other heads write; at least one is needed."""
    layers = model.attention_layers[1:]
    if not layers:
        raise KeyholeError(f"{model.name} has one attention layer: no head can hear another, and no signal is shared.")
    return layers


def batches(
    model: Model, questions: Sequence[StoredQuestion], size: int = BATCH
) -> Iterator[tuple[Sequence[StoredQuestion], Writes]]:
    """Prompts side by side, with all that was written."""
    for start in range(0, len(questions), size):
        batch = questions[start : start + size]
        yield batch, Writes(model.run_many([list(question.token_ids) for question in batch], bos=False))


def listen(
    model: Model, questions: Sequence[StoredQuestion], tau: Tau, *, seed: int = 0, progress: Progress = silent
) -> Listened:
    """Explain a firing of every head on the first token and, in every second prompt, one on another token."""
    listened, layers = Listened(), layers_of(model)
    generator = torch.Generator().manual_seed(seed)
    total, done = len(layers) * -(-len(questions) // BATCH), 0
    with exact_matmul(), model._steady():
        for batch, writes in batches(model, questions):
            listened.moments.add(writes, layers)
            for layer in layers:
                _listen(listened, writes, layer, batch, tau=tau, generator=generator)
                progress(done := done + 1, total)
    listened.rest, listened.other = joined(listened.rest), joined(listened.other)
    return listened


def _listen(
    listened: Listened,
    writes: Writes,
    layer: int,
    questions: Sequence[StoredQuestion],
    *,
    tau: Tau,
    generator: torch.Generator,
) -> None:
    prompts = [question.number for question in questions]
    numbers = {id(run): i for i, run in enumerate(writes.runs)}
    fires = firing(writes, layer, tau)
    listened.firings += int(fires[..., 0].sum())
    listened.sites += fires.shape[1] * sum(len(run) - 1 for run in writes.runs)
    first = torch.zeros_like(fires)
    first[..., 0] = fires[..., 0]
    other = fires & ~first
    other[1::2] = False
    for chosen, into in ((first, listened.rest), (other, listened.other)):
        places = _drawn(chosen, generator)
        if places:
            caused: Iterator[Caused] = of_firings(explain_sites(writes, layer, places, tau).firings(), numbers)
            into += hear(writes, caused, prompts)


def firing(writes: Writes, layer: int, tau: Tau) -> Bool[Tensor, "runs heads dest src"]:
    """Where do this layer's heads fire? The first token does not count: it can attend to itself alone."""
    record = writes.record(layer)
    weights = record.weights(record.heads, range(writes.n))
    return fires_in(record, writes.runs, weights, tau)


def fires_in(
    record: AttentionRun, runs: Sequence[Run], weights: Float[Tensor, "runs heads dest src"], tau: Tau
) -> Bool[Tensor, "runs heads dest src"]:
    """Where are attention weights at or above tau, for tokens after the first?"""
    visible = record.visible()
    tau_ = [threshold(tau, dest, int(count)) for dest, count in enumerate(visible.sum(-1).tolist())]
    limit = torch.tensor(tau_, dtype=torch.float64, device=weights.device)
    fires: Tensor = (weights.double() >= limit[:, None]) & visible
    fires[:, :, 0] = False
    for i, run in enumerate(runs):
        fires[i, :, len(run) :] = False
    return fires


def _drawn(fires: Bool[Tensor, "runs heads dest src"], generator: torch.Generator) -> list[tuple[int, int, int, int]]:
    """One firing of each run and head that has any."""
    runs, heads, n, _ = fires.shape
    order = torch.rand(fires.shape, generator=generator) * fires.cpu()
    value, at = order.flatten(2).max(-1)
    return [(r, h, *divmod(int(at[r, h]), n)) for r in range(runs) for h in range(heads) if float(value[r, h]) > 0]
