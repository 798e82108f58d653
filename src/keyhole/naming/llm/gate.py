"""Whose turn is it? Requests begin so far apart as the user or the server wants, until somebody says stop."""

import time
from dataclasses import dataclass, field
from threading import Event, Lock

from keyhole.errors import KeyholeError


class StoppedError(KeyholeError):
    """Somebody asked to stop before this request was sent."""


@dataclass
class Gate:
    """Requests begin at least so far apart, and nobody begins while the server is busy."""

    apart: float = 0.0
    stop: Event = field(default_factory=Event)
    _next: float = 0.0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def enter(self) -> None:
        """Wait for one's turn."""
        while True:
            with self._lock:
                now = time.monotonic()
                if now >= self._next:
                    self._next = now + self.apart
                    break
                left = self._next - now
            self.wait(left)
        self.wait(0)

    def close(self, seconds: float) -> None:
        """Let nobody begin for so long."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

    def wait(self, seconds: float) -> None:
        """Sleep, unless told to stop."""
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise StoppedError("stopped.")
