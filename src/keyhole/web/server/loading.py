"""How is a model loaded for somebody who may lose patience? In a thread of its own, for which the worker waits."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.web.server.jobs import Told

_LOOKS = 0.05  # seconds between two looks whether the model is still wanted


class Loader:
    """Loads one model at a time.

    Libraries that read models cannot be interrupted. Work that is stopped meanwhile leaves the loading to itself, so
    that the worker is free at once: whoever asks for the same model while it is under way waits for it again.
    """

    def __init__(self) -> None:
        self._underway: dict[str, Future[Model]] = {}
        self._turn = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._underway

    def load(self, name: str, make: Callable[[], "Model"], told: "Told") -> "Model":
        """The model that `make` loads; work that is not wanted any more stops here."""
        told.progress(f"Loading {name}")
        future = self._underway.get(name)
        if future is None:
            self._underway[name] = future = Future()
            threading.Thread(target=self._run, args=(name, make, future), name="keyhole-loader", daemon=True).start()
        while not wait([future], _LOOKS).done:
            told.check()
        return future.result()

    def _run(self, name: str, make: Callable[[], "Model"], future: "Future[Model]") -> None:
        with self._turn:  # transformers' settings are the process's: two models at once would change each other's
            try:
                future.set_result(make())
            except BaseException as error:  # all of it belongs to whoever waits
                future.set_exception(error)
            finally:
                del self._underway[name]
