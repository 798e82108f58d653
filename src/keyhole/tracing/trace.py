"""Which circuit is behind an answer? By ACC++, firings are explained layer by layer from the seeds down; or by `svt`.

A firing depends only on the clean run, so the recursion over signals can be done level by level: all firings of a layer
together, from the top down. The graph is the recursive one.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from keyhole.brief import Table, as_dataframe
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.exports import signal_rows
from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import prompt_text
from keyhole.progress import Progress, silent
from keyhole.settings.fields import chosen
from keyhole.settings.tracing import TraceOptions, TraceSettings
from keyhole.tracing.answers import Continuation, Target, Tokens, choose_targets
from keyhole.tracing.batch import Attempts, Batch, Errors, TraceRequest, Untraced, followed
from keyhole.tracing.linear import Probe
from keyhole.tracing.svt import trace_svt

if TYPE_CHECKING:
    from keyhole.models.run import Run

__all__ = ["Circuits", "trace", "trace_many"]

Found = TypeVar("Found", covariant=True)
_TOGETHER = 32  # circuits whose objects are made at once, when all are looked at
_MOVED_FLOATS = 1 << 28  # what heads move, held at once: 1 GB in float32, of as many runs as fit


class Circuits(Sequence[Found]):
    """The circuits of several runs, in their order; each is made of its columns when it is first looked at."""

    def __init__(self, circuits: Sequence[Untraced | Callable[[], Circuit]]) -> None:
        self._circuits: list[Any] = list(circuits)

    def __len__(self) -> int:
        return len(self._circuits)

    @overload
    def __getitem__(self, index: int) -> Found: ...

    @overload
    def __getitem__(self, index: slice) -> list[Found]: ...

    def __getitem__(self, index: int | slice) -> Found | list[Found]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        self._make([index])
        circuit: Found = self._circuits[index]
        return circuit

    def __iter__(self) -> Iterator[Found]:
        for start in range(0, len(self), _TOGETHER):
            self._make(range(len(self))[start : start + _TOGETHER])
            yield from self._circuits[start : start + _TOGETHER]

    def _make(self, which: Iterable[int]) -> None:
        with exact_matmul(), _no_collection():
            for i in which:
                circuit = self._circuits[i]
                self._circuits[i] = circuit() if callable(circuit) else circuit

    def to_dataframe(self) -> Table:
        """One table of all circuits, a row per signal: a pandas DataFrame, or records without pandas.

        Each row has the index of its prompt and how it begins, the answer with its probability, and what
        `Circuit.to_dataframe` has. A prompt that could not be traced has one row, with its `error`.

        >>> import keyhole
        >>> runs = keyhole.load().run_many(["When Mary and John went to the store, John gave a drink to"])
        >>> circuits = trace_many(runs, ["Mary"], through="heads")
        >>> len(circuits.to_dataframe()) == len(circuits[0].edges)
        True
        """
        rows = list[dict[str, Any]]()
        for index, circuit in enumerate(self):
            if isinstance(circuit, Untraced):
                rows.append({"prompt": index, "text": circuit.prompt, "error": str(circuit.error)})
                continue
            assert isinstance(circuit, Circuit)
            rows += [{**_about(index, circuit), "error": None, **row} for row in signal_rows(circuit)]
        return as_dataframe(rows)

    def __repr__(self) -> str:
        untraced = sum(isinstance(circuit, Untraced) for circuit in self._circuits)
        return f"<{len(self) - untraced} circuits" + (f", {untraced} prompts untraced>" if untraced else ">")


def _about(index: int, circuit: Circuit) -> dict[str, Any]:
    """Of which prompt and which answer these rows are."""
    tokenizer = None if circuit.run is None else circuit.run.model.tokenizer
    chosen = circuit.parameters
    return {
        "prompt": index,
        "text": prompt_text(tokenizer, circuit.token_ids),
        "answer": " ".join(text.strip() for text in chosen.target_text),
        "probability": chosen.likely,
    }


def trace(
    run: "Run",
    target: Target = None,
    *,
    against: Tokens | Continuation | None = None,
    settings: TraceSettings | None = None,
    end: int | str = -1,
    progress: Progress | None = None,
    **options: Unpack[TraceOptions],
) -> Circuit:
    """Trace the circuit behind one answer, predicted at `end`. See `Run.trace` for the options."""
    how, report = chosen(settings, TraceSettings, options), progress or silent
    request = _asked(TraceRequest(run, target, against, end), how)
    if how.svt is not None:
        if isinstance(request.target, Continuation) and len(request.target.ids) > 1:
            raise KeyholeError(
                "svt begins with one token, and this answer is several: leave the method out, or give its first token."
            )
        run, end = request.run, request.run.position(request.end, "end")
        other = None if request.against is None else choose_targets(run, request.against, end)
        return trace_svt(
            run, request.target, against=other, settings=how.svt, metric=how.metric, end=end, progress=report
        )
    (circuit,) = _trace([request], how, Attempts([request.run], "raise"), report)
    assert isinstance(circuit, Circuit)
    return circuit


@overload
def trace_many(
    runs: Sequence["Run"],
    targets: Sequence[Target] | None = None,
    *,
    against: Sequence[Tokens | Continuation | None] | None = None,
    settings: TraceSettings | None = None,
    errors: Literal["raise"],
    progress: Progress | None = None,
    **options: Unpack[TraceOptions],
) -> "Circuits[Circuit]": ...


@overload
def trace_many(
    runs: Sequence["Run"],
    targets: Sequence[Target] | None = None,
    *,
    against: Sequence[Tokens | Continuation | None] | None = None,
    settings: TraceSettings | None = None,
    errors: Literal["keep"] = "keep",
    progress: Progress | None = None,
    **options: Unpack[TraceOptions],
) -> "Circuits[Circuit | Untraced]": ...


def trace_many(
    runs: Sequence["Run"],
    targets: Sequence[Target] | None = None,
    *,
    against: Sequence[Tokens | Continuation | None] | None = None,
    settings: TraceSettings | None = None,
    errors: Errors = "keep",
    progress: Progress | None = None,
    **options: Unpack[TraceOptions],
) -> "Circuits[Circuit] | Circuits[Circuit | Untraced]":
    """Trace the circuits of several runs of one model together.

    Args:
        runs: Of one model: `model.run_many(prompts)`.
        targets: The answer of each run, as `Run.trace` takes it. Default: the likeliest next token of each.
        against: The other answer of each run, or None for a run without.
        settings: How they are traced: a `keyhole.tracing.TraceSettings`, whose fields are the choices below.
        errors: A prompt that cannot be traced is kept as `Untraced` in the place of its circuit ("keep"), or raises.
        progress: Called with the number of layers done and their total, also between blocks of a layer's firings: an
            exception from there stops the work.
        **options: Choices by name, as `Run.trace` takes them; beside a record they change it:
            - `method`: "accpp" alone: svt traces one run at a time.
            - `metric`: How an answer's score is read.
            - `tau`: The weight below which an attention weight counts as gone.
            - `keys`: What a removal on the src side touches.
            - `first_token`: What becomes of firings on the first token.
            - `through`: Whether circuits go on through MLPs.

    Returns:
        The circuits, in the order of the runs. `to_dataframe` makes one table of all. What was found lies in columns;
        a circuit's objects are made when it is looked at.

    >>> import keyhole
    >>> runs = keyhole.load().run_many(["When Mary and John went to the store, John gave a drink to"] * 2)
    >>> [type(circuit).__name__ for circuit in trace_many(runs, ["Mary", "Mary"], through="heads")]
    ['Circuit', 'Circuit']
    """
    how = chosen(settings, TraceSettings, options)
    answers: Sequence[Target] = [None] * len(runs) if targets is None else targets
    others = [None] * len(runs) if against is None else list(against)
    if not runs or not len(runs) == len(answers) == len(others):
        raise KeyholeError("give at least one run, and one target (and one `against`), if any, for each run.")
    if any(run.model is not runs[0].model for run in runs):
        raise KeyholeError("these are runs of several models: trace those of each model together, one model at a time.")
    if how.svt is not None:
        raise KeyholeError("svt traces one prompt at a time: call `run.trace` for each, or leave the method out.")
    attempts, requests = Attempts(runs, errors), list[TraceRequest]()
    for i, given in enumerate(zip(runs, answers, others, strict=True)):
        requests.append(TraceRequest(*given))
        with attempts.at(i):
            requests[i] = _asked(requests[i], how)
    return _trace(requests, how, attempts, progress or silent)


def _asked(request: TraceRequest, how: TraceSettings) -> TraceRequest:
    """A request with an answer of several tokens followed; a probe asks for a direction, whatever the answer is."""
    return request if isinstance(how.metric, Probe) else followed(request)


def _trace(
    requests: Sequence[TraceRequest], how: TraceSettings, attempts: Attempts, progress: Progress
) -> "Circuits[Any]":
    """All runs, as many side by side as fit into memory."""
    model, depth = requests[0].run.model, len(requests[0].run.layers)
    per_token = len(model.attention_layers) * model.dims.heads * model.dims.d_model
    batches = model._batches([len(request.run) for request in requests], max(1, _MOVED_FLOATS // per_token))
    circuits = dict[int, Callable[[], Circuit]]()
    report = _reporting(progress, depth * len(batches))
    with exact_matmul(), model._steady(), _no_collection():
        for batch in batches:
            circuits |= Batch({i: requests[i] for i in batch}, how, attempts, report).circuits()
    return Circuits([attempts.failed.get(i) or circuits[i] for i in range(len(requests))])


def _reporting(progress: Progress, total: int) -> Callable[[int], None]:
    """Reports so many layers more; none, inside a layer, so that whoever stops the work there is heard."""
    done = 0

    def report(layers: int) -> None:
        nonlocal done
        done += layers
        progress(done, total)

    report(0)
    return report


@contextmanager
def _no_collection() -> Iterator[None]:
    """Thousands of small objects that live on: looking for garbage among them takes longer than making them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
