"""How far is long work, and how do worker processes begin and end?

How far is a long piece of work? What the library calls while it works, and whoever shows progress provides.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing import parent_process

Progress = Callable[[int, int], None]  # done, total
Between = Callable[[], None]  # called between small pieces of work, often; raises where the work should stop
Stage = Callable[[str], AbstractContextManager[Progress]]  # one named part of the work


def silent(done: int, total: int) -> None:
    """Show nothing."""


def nothing() -> None:
    """Go on."""


def part_of(progress: Progress, start: float, end: float) -> Progress:
    """How far a part is, told as a share of the whole: from `start` to `end`, of 1.

    >>> part_of(print, 0.5, 1)(1, 4)
    625 1000
    """
    return lambda done, total: progress(round(1000 * (start + (end - start) * done / max(total, 1))), 1000)


@contextmanager
def quiet(what: str) -> Iterator[Progress]:
    """A stage whose progress is not shown."""
    yield silent


@dataclass
class Pace:
    """How fast does it go, and how long will it take? From what was done since the first call."""

    clock: Callable[[], float] = time.monotonic
    _first: tuple[float, int] | None = field(default=None, repr=False)

    def told(self, done: int, total: int) -> str:
        """Rate and time left, once something was done.

        >>> pace = Pace(clock=iter([0.0, 10.0]).__next__)
        >>> pace.told(64, 192), pace.told(128, 192)
        ('', '6.4 a second, 10 s left')

        Where fewer are done than at first, another part of the work has begun:

        >>> pace = Pace(clock=iter([0.0, 10.0, 20.0]).__next__)
        >>> pace.told(6, 6), pace.told(2, 8), pace.told(4, 8)
        ('', '', '0.2 a second, 20 s left')
        """
        each = self.each(done)
        return f"{1 / each:.3g} a second, {duration((total - done) * each)} left" if each else ""

    def each(self, done: int) -> float:
        """Seconds that one piece takes; 0 as long as nothing is known."""
        now = self.clock()
        if self._first is None or done < self._first[1]:
            self._first = (now, done)
        took, made = now - self._first[0], done - self._first[1]
        return took / made if made else 0.0


def duration(seconds: float) -> str:
    """A time as one says it.

    >>> duration(7.2), duration(83), duration(5000)
    ('7 s', '1 min 23 s', '1 h 23 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# How are worker processes begun? With few threads each, since there are many of them; none outlives who began it.

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def few_threads(n: int = 1) -> Iterator[None]:
    """What processes inherit if they start meanwhile: as many of them as cores, so few threads for each."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ |= dict.fromkeys(_THREADS, str(n))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def begin_worker(threads: int = 1) -> None:
    """Called first in a worker: so many threads, and an end when its parent's comes."""
    import torch

    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Pools tell their workers when to end, but a killed parent tells nobody: they would wait for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
