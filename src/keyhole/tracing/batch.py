"""Which circuits are behind the answers of some runs? All of them side by side, a layer at a time from the top.

MLPs come first: they read a layer's heads. A prompt that cannot be traced refuses no other.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Int

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Writer
from keyhole.errors import KeyholeError, require_choice
from keyhole.models.tokens import prompt_text
from keyhole.settings.tracing import TraceSettings
from keyhole.tracing.answers import Likeliest, Target, Tokens, choose_targets, token_ids
from keyhole.tracing.assemble import Growing, build_circuit, checked, model_facts
from keyhole.tracing.candidates import Sites
from keyhole.tracing.exactness import Check, check_runs
from keyhole.tracing.firing import Explained, threshold
from keyhole.tracing.linear import Probe
from keyhole.tracing.mlp_influence import Flows
from keyhole.tracing.seeds import Goal, Seed, seeds_of
from keyhole.tracing.settings import Settings, goals_of
from keyhole.tracing.upstream import Writes
from keyhole.tracing.why import explain_layer, thresholds

if TYPE_CHECKING:
    from keyhole.models.run import Run

Errors = Literal["raise", "keep"]


@dataclass(frozen=True)
class Untraced:
    """A prompt of `trace_many` that has no circuit, and why."""

    index: int  # among the runs
    prompt: str  # its text
    error: KeyholeError  # why there is no circuit

    def __str__(self) -> str:
        return f"prompt {self.index} ({self.prompt!r}): {self.error}"


@dataclass(frozen=True)
class TraceRequest:
    """What one run is traced for."""

    run: "Run"
    target: Target
    against: Tokens | None
    end: int | str = -1


@dataclass
class Attempts:
    """Which prompts could not be traced: each in its place, or the first of them as an error that names it."""

    runs: Sequence["Run"]
    errors: Errors
    failed: dict[int, Untraced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_choice("errors", self.errors, Errors)

    @contextmanager
    def at(self, index: int) -> Iterator[None]:
        """Work on one prompt; what refuses it refuses no other. The first refusal of a prompt is kept."""
        try:
            yield
        except KeyholeError as error:
            run = self.runs[index]
            untraced = Untraced(index, prompt_text(run.model.tokenizer, run.token_ids), error)
            if self.errors == "keep":
                error.__cause__ = error.__context__ = error.__traceback__ = None  # they would keep the whole batch
                self.failed.setdefault(index, untraced)
            elif len(self.runs) > 1:
                raise type(error)(str(untraced)) from error
            else:
                raise


class Batch:
    """Runs that are traced side by side, a layer at a time from the top; MLPs come first: they read a layer's heads."""

    def __init__(
        self,
        requests: Mapping[int, TraceRequest],
        how: TraceSettings,
        attempts: Attempts,
        report: Callable[[int], None],
    ) -> None:
        """`report` is called often, with the layers that are done since the last call; it raises to stop the work."""
        self.numbers, self.how, self.attempts, self.report = list(requests), how, attempts, report
        self.writes = Writes([request.run for request in requests.values()])
        self.flows = None if how.mlps is None else Flows(self.writes, how.mlps)
        self.explained: list[Explained] = []
        self.waiting: dict[int, list[Int[np.ndarray, "place 4"]]] = defaultdict(list)  # by layer: run, head, dest, src
        self.settings: dict[int, Settings] = {}
        for row, request in enumerate(requests.values()):
            with attempts.at(self.numbers[row]):
                self.settings[row] = _answered(request, how)
        self.seeds = self._seeds()

    @property
    def alive(self) -> list[int]:
        """The runs that nothing has refused yet."""
        return [row for row, number in enumerate(self.numbers) if number not in self.attempts.failed]

    def circuits(self) -> dict[int, Callable[[], Circuit]]:
        """All of them, by their numbers: found, checked, and made into objects when they are looked at."""
        if not self.alive:
            return {}
        for layer in reversed(range(len(self.writes.runs[0].layers))):
            self._grow(layer)
            self.report(1)
        ends = [self.settings[row].end if row in self.settings else 0 for row in range(len(self.numbers))]
        checks, circuits = check_runs(self.writes, logits_at=ends), dict[int, Callable[[], Circuit]]()
        facts = model_facts(self.writes.model)
        for row in self.alive:
            with self.attempts.at(self.numbers[row]):
                check = checked(checks[row], self.writes.runs[row])
                circuits[self.numbers[row]] = partial(self._circuit, row, check, facts)
        self.writes.release()
        return circuits

    def _seeds(self) -> dict[int, list[Seed]]:
        """The writers at the end that each answer rests on: they hand on its influence, or wait to be explained."""
        goals, seeds = dict[int, Goal](), dict[int, list[Seed]]()
        for row, goal in goals_of(self.writes, self.settings).items():
            with self.attempts.at(self.numbers[row]):
                goals[row] = goal()
        for row, choose in zip(goals, seeds_of(self.writes, list(goals.values())), strict=True):
            with self.attempts.at(self.numbers[row]):
                seeds[row] = choose()
                if self.flows is not None:
                    self.flows.seed(row, seeds[row])
                else:
                    self._wait(_heads([(row, seed.writer) for seed in seeds[row] if seed.writer.kind == "head"]))
        return seeds

    def _wait(self, heads: Int[np.ndarray, "place 5"]) -> None:
        """Heads wait to be explained at their own layer; layer 0 and the first token end the recursion."""
        heads = heads[(heads[:, 1] > 0) & (heads[:, 3] > 0)]
        if self.how.first_token == "collapse":
            heads = heads[heads[:, 4] > 0]
        for layer in np.unique(heads[:, 1]).tolist():
            self.waiting[layer].append(heads[heads[:, 1] == layer][:, [0, 2, 3, 4]])

    def _grow(self, layer: int) -> None:
        """Explain the MLPs and then the heads that wait in one layer, and queue what is behind them."""
        if self.flows is not None:
            self.flows.explain_mlps(layer, self.alive)
            self.report(0)
            reached = [(row, w) for row in self.alive for w in self.flows.flows[row].reached("head", layer)]
            self._wait(_heads(reached))
        alive = set(self.alive)
        places = [group for group in self.waiting.pop(layer, ()) if len(group)]
        if not places:
            return
        chosen = self._distinct(np.concatenate(places))
        chosen = chosen[np.isin(chosen[:, 0], list(alive))]
        if not len(chosen):
            return
        sites = Sites(*torch.from_numpy(chosen.T.copy()).to(self.writes.device))
        between = partial(self.report, 0)
        explained = explain_layer(self.writes, layer, sites, self._limits, keys=self.how.keys, between=between)
        self.explained.append(explained)
        if self.flows is not None:
            self.flows.explain_firings(explained)
        else:
            self._wait(explained.heads_behind())

    def _distinct(self, places: Int[np.ndarray, "place 4"]) -> Int[np.ndarray, "distinct 4"]:
        """Each place once, by run, head, dest and src: numbers are compared faster than rows."""
        shape = (len(self.numbers), self.writes.patterns.n_heads, self.writes.n, self.writes.n)
        return np.stack(np.unravel_index(np.unique(np.ravel_multi_index(tuple(places.T), shape)), shape), axis=1)

    def _limits(self, rows: list[int], dests: list[int], visible: list[int]) -> list[float]:
        """Tau of firings; a function of the user's that gives no threshold refuses its prompt alone."""
        if not callable(self.how.tau):
            return thresholds(self.how.tau, rows, dests, visible)
        limits = [math.inf] * len(rows)
        for i, (row, dest, n) in enumerate(zip(rows, dests, visible, strict=True)):
            with self.attempts.at(self.numbers[row]):
                limits[i] = threshold(self.how.tau, dest, n)
        return limits

    def _circuit(self, row: int, check: Check, facts: Mapping[str, str]) -> Circuit:
        firings = {}
        for explained in self.explained:
            for i in np.nonzero(explained.run == row)[0].tolist():
                firing = explained.firing(i)
                firings[firing.layer, firing.head, firing.dest, firing.src] = firing
        flow, settings = None if self.flows is None else self.flows.flows[row], self.settings[row]
        grown = Growing(self.writes, row, settings, self.seeds[row], firings, flow)
        return build_circuit(grown, settings.parameters(), check, facts)


def _answered(request: TraceRequest, how: TraceSettings) -> Settings:
    """What one run is traced for: which tokens its answer is, and which others it is held against."""
    run, target = request.run, Likeliest(1) if request.target is None else request.target
    end = run.position(request.end, "end")
    run._require_fresh()
    against = tuple(token_ids(run, request.against, end))
    metric = how.metric or ("linear" if against else "prob")
    ids: Sequence[int] = () if isinstance(metric, Probe) else choose_targets(run, target, end)
    likeliest = target if isinstance(target, Likeliest) else None
    return Settings(tuple(ids), against, end, likeliest, metric, how)


def _heads(writers: Sequence[tuple[int, Writer]]) -> Int[np.ndarray, "place 5"]:
    """Heads of runs as numbers: run, layer, head, dest, src."""
    numbers = [(row, w.layer, w.head, w.dest, w.src) for row, w in writers]
    return np.array(numbers, dtype=np.int64).reshape(-1, 5)
