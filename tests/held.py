"""Work of the explorer's server that waits half-way, so that a page can be looked at meanwhile."""

import threading
import time
from functools import wraps
from importlib import import_module
from typing import Any

import pytest


class Held:
    """Work of these kinds waits half-way until it is let go, and can be stopped there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self._gates = monkeypatch, dict[str, threading.Event]()

    def hold(self, module: str, function: str) -> None:
        work = import_module(f"keyhole.web.server.{module}")
        whole, self._gates[function] = getattr(work, function), threading.Event()
        gate = self._gates[function]

        @wraps(whole)  # the server reads the request's fields off the function's types
        def waits(kept: Any, body: Any, reporter: Any) -> Any:
            while not gate.is_set():
                reporter.check()
                time.sleep(0.01)
            return whole(kept, body, reporter)

        self._patch.setattr(work, function, waits)

    def let_go(self, function: str) -> None:
        self._gates[function].set()
