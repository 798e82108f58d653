"""What does the worker keep between requests, and how is a model loaded?"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from keyhole.errors import KeyholeError
from keyhole.models.organism import NAME as ORGANISM
from keyhole.models.organism import source_named

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.naming.record import Naming
    from keyhole.requests.bodies import PromptBody
    from keyhole.requests.jobs import Reporter
    from keyhole.store.store import Store

# How is a model loaded for somebody who may lose patience? In a thread of its own, for which the worker waits.

_LOOKS = 0.05  # seconds between two looks whether the model is still wanted


class Loader:
    """Loads one model at a time.

    Libraries that read models cannot be interrupted. When work is stopped meanwhile, the loading thread goes on alone
    and the worker is free at once. A later request for the same model waits for the same thread.
    """

    def __init__(self) -> None:
        self._underway: dict[str, Future[Model]] = {}
        self._turn = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._underway

    def load(self, name: str, make: Callable[[], "Model"], reporter: "Reporter") -> "Model":
        """The model that `make` loads; work that is not wanted any more stops here."""
        reporter.progress(f"Loading {name}")
        future = self._underway.get(name)
        if future is None:
            self._underway[name] = future = Future()
            threading.Thread(target=self._run, args=(name, make, future), name="keyhole-loader", daemon=True).start()
        while not wait([future], _LOOKS).done:
            reporter.check()
        return future.result()

    def _run(self, name: str, make: Callable[[], "Model"], future: "Future[Model]") -> None:
        with self._turn:  # transformers has settings of the whole process: two loads at once would change each other
            try:
                future.set_result(make())
            except BaseException as error:  # it is raised again where the result is waited for
                future.set_exception(error)
            finally:
                del self._underway[name]


# What does the worker keep between requests? Models, the last runs with their results, stores and names.
#
# Only the worker's thread uses it, except for the lists of models and stores. Modules that load torch are imported
# when the first request needs them, so that the server listens at once.

TOKENS = 2000  # of a prompt
RUNS, RUN_TOKENS, MODELS, CIRCUITS = 12, 3000, 4, 32  # kept at once
_RESULTS = 64  # of one run
NO_NAMES = "there are no names: start keyhole explore with --names names.json."

T = TypeVar("T")
State = Literal["known", "loading", "ready"]


class Last(Generic[T]):
    """The things that were used last. The oldest go when there are too many, or when they weigh too much together.

    >>> last = Last[str](most=2)
    >>> [last.get(key, lambda: key.upper()) for key in ("a", "b", "a", "c")], list(last.kept)
    (['A', 'B', 'A', 'C'], ['a', 'c'])
    """

    def __init__(
        self, most: int, heaviest: float = float("inf"), weigh: Callable[[T], float] = lambda thing: 0
    ) -> None:
        self.kept: OrderedDict[Hashable, T] = OrderedDict()
        self._most, self._heaviest, self._weigh = most, heaviest, weigh

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """A thing by its key, made if it is not there."""
        if key not in self.kept:
            self.kept[key] = make()
            while len(self.kept) > 1 and (len(self.kept) > self._most or self._weight() > self._heaviest):
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]

    def _weight(self) -> float:
        return sum(self._weigh(thing) for thing in self.kept.values())


@dataclass(frozen=True)
class Ran:
    """One run with its results, which are forgotten with the run."""

    model: str
    run: "Run"
    results: Last[Any] = field(default_factory=lambda: Last[Any](_RESULTS))


@dataclass(frozen=True)
class Given:
    """What the server was started with."""

    models: tuple[str, ...] = ()
    stores: tuple[Path, ...] = ()
    names: Path | None = None
    tokens: int = TOKENS

    @property
    def first(self) -> str:
        """The model that the page begins with: the first of the command line, or the organism."""
        return self.models[0] if self.models else ORGANISM


class Kept:
    """Everything that requests share."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.known: dict[str, None] = dict.fromkeys((ORGANISM, *given.models))
        self.models: Last[Model] = Last(MODELS)
        self.runs: Last[Ran] = Last(RUNS, RUN_TOKENS, lambda ran: len(ran.run))
        self.circuits: Last[Circuit] = Last(CIRCUITS)
        self.stores = named_paths(given.stores)
        self._opened: dict[str, Store] = {}
        self._naming: Naming | None = None
        self._loader = Loader()

    def state(self, name: str) -> State:
        """How far a model is; may be called from any thread."""
        return "ready" if name in self.models.kept else "loading" if name in self._loader else "known"

    def source(self, name: str) -> str | None:
        """What is loaded by this name; who serves some models alone refuses the others here."""
        return source_named(name)

    def model(self, name: str, reporter: "Reporter") -> "Model":
        """A model, loaded once and listed from then on; work that waits for it can be stopped."""

        def make() -> "Model":
            from keyhole.models.load import load

            return load(source)

        if len(name) > 500:
            raise KeyholeError("a model's name is a hub name, a folder or a .gguf file: this text is too long for one.")
        source = self.source(name)
        model = self.models.get(name, lambda: self._loader.load(name, make, reporter))
        self.known[name] = None
        unloaded = [key for key in self.runs.kept if isinstance(key, tuple) and key[0] not in self.models.kept]
        for key in unloaded:  # a run holds its model, which would stay in memory with it
            del self.runs.kept[key]
        return model

    def encoded(self, body: "PromptBody", reporter: "Reporter") -> "tuple[Model, tuple[int, ...]]":
        """The model and the token ids of a prompt: text, ids or messages; one that is too long is refused."""
        from keyhole.models.chat import is_messages
        from keyhole.models.tokens import encode

        prompt = body.prompt
        ids_given = isinstance(prompt, list) and all(type(i) is int for i in prompt)
        if not (isinstance(prompt, str) or ids_given or is_messages(prompt)):
            raise KeyholeError("a prompt is a text, a list of token ids or a list of messages.")
        model = self.model(body.model, reporter)
        ids = encode(model, prompt, body.bos).ids
        if len(ids) > self.given.tokens:
            raise KeyholeError(
                f"the prompt has {len(ids):,} tokens, and this server takes {self.given.tokens:,}: give a shorter one, "
                "or use the library."
            )
        return model, ids

    def ran(self, body: "PromptBody", reporter: "Reporter") -> Ran:
        """The run of a prompt; one that is too long is refused before anything is computed."""
        name, (model, ids) = body.model, self.encoded(body, reporter)

        def run() -> Ran:
            reporter.progress("Running the model")
            return Ran(name, model.run(list(ids)))

        return self.runs.get((name, ids), run)

    def store(self, name: str) -> "Store":
        """A store that the server was started with."""
        from keyhole.store.store import open_store

        if name not in self.stores:
            names = ", ".join(self.stores) or "none: start it with --store"
            raise KeyholeError(f"there is no store {name!r} here (there is {names}).")
        if name not in self._opened:
            self._opened[name] = open_store(self.stores[name])
        return self._opened[name]

    def naming(self) -> "Naming | None":
        """The names that the server was started with."""
        if self.given.names is not None and self._naming is None:
            from keyhole.naming.record import load_naming

            self._naming = load_naming(self.given.names)
        return self._naming


def named_paths(paths: Sequence[Path]) -> dict[str, Path]:
    """Stores by short names: the folder's own, with a number where two have the same.

    >>> list(named_paths([Path("a/ioi.store"), Path("b/ioi.store")]))
    ['ioi.store', 'ioi.store (2)']
    """
    named: dict[str, Path] = {}
    for path in paths:
        short, n = Path(os.path.abspath(path)).name, 2
        name = short
        while name in named:
            name, n = f"{short} ({n})", n + 1
        named[name] = path
    return named
