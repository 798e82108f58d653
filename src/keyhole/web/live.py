"""How does a notebook ask? As the explorer's page does, but of one run that is there: the same work, the same JSON."""

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Given, Kept, Ran
from keyhole.web.server.kinds import KINDS
from keyhole.web.server.work.asked import circuit_of

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.models.run import Run

Tell = Callable[[int, int], None]  # how far long work is
_NAME = "this"  # what the one model is called here


class Live:
    """One run, to be asked about."""

    def __init__(self, run: "Run") -> None:
        self._kept = Kept(Given(tokens=len(run)))
        self._kept.models.get(_NAME, lambda: run.model)
        self._kept.runs.get((_NAME, run.token_ids), lambda: Ran(_NAME, run))
        self.model = {"model": _NAME}
        self.place = {**self.model, "prompt": list(run.token_ids)}

    def ask(self, kind: str, asked: dict[str, Any], tell: Tell = lambda done, total: None) -> Any:
        """What the server would answer to this request."""
        return json.loads(KINDS[kind].work(self._kept, asked)(_told(tell)))

    def trace(self, asked: dict[str, Any], tell: Tell = lambda done, total: None) -> "Circuit":
        """The circuit of a request to trace, with its run."""
        return circuit_of(self._kept, Body({**self.place, **asked}), _told(tell))[0]


def _told(tell: Tell) -> Told:
    return Told(threading.Event(), lambda what, done, total: tell(done, total), lambda: None)  # nobody else waits
