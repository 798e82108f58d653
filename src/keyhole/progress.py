"""Progress of long work: the callbacks that the library calls; and the start and end of worker processes."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing import parent_process

Progress = Callable[[int, int], None]  # done, total
Between = Callable[[], None]  # called often, between small pieces of work; raises to stop the work
Stage = Callable[[str], AbstractContextManager[Progress]]  # a part of the work, by its title


def silent(done: int, total: int) -> None:
    """Show nothing."""


def nothing() -> None:
    """Go on."""


def part_of(progress: Progress, start: float, end: float) -> Progress:
    """The progress of a part, reported as progress of the whole, from the share `start` to the share `end`.

    >>> part_of(print, 0.5, 1)(1, 4)
    625 1000
    """
    return lambda done, total: progress(round(1000 * (start + (end - start) * done / max(total, 1))), 1000)


@contextmanager
def quiet(title: str) -> Iterator[Progress]:
    """A `Stage` that shows nothing."""
    yield silent


@dataclass
class Pace:
    """The rate of long work and the time left, from what was done since the first call."""

    clock: Callable[[], float] = time.monotonic
    _first: tuple[float, int] | None = field(default=None, repr=False)

    def text(self, done: int, total: int) -> str:
        """Rate and time left; empty until something was done.

        >>> pace = Pace(clock=iter([0.0, 10.0]).__next__)
        >>> pace.text(64, 192), pace.text(128, 192)
        ('', '6.4 a second, 10 s left')

        A smaller number than at first means that another part of the work has begun:

        >>> pace = Pace(clock=iter([0.0, 10.0, 20.0]).__next__)
        >>> pace.text(6, 6), pace.text(2, 8), pace.text(4, 8)
        ('', '', '0.2 a second, 20 s left')
        """
        each = self.each(done)
        return f"{1 / each:.3g} a second, {duration((total - done) * each)} left" if each else ""

    def each(self, done: int) -> float:
        """Seconds per piece of work; 0 as long as that is not known."""
        now = self.clock()
        if self._first is None or done < self._first[1]:
            self._first = (now, done)
        took, count = now - self._first[0], done - self._first[1]
        return took / count if count else 0.0


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(7.2), duration(83), duration(5000)
    ('7 s', '1 min 23 s', '1 h 23 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# Worker processes: with few threads each, since there are many of them; none outlives its parent.

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def few_threads(n: int = 1) -> Iterator[None]:
    """Processes started inside inherit this number of threads: with a process per core, each should have few."""
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
    """Called first in a worker: set its threads, and end it when its parent ends."""
    import torch

    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool ends its workers, but a parent that is killed does not: they would wait for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
