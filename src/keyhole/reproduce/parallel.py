"""How are many items measured at once? In processes of one thread each; what they share on disk is trained by one."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from keyhole.errors import KeyholeError

Task = TypeVar("Task")
Done = TypeVar("Done")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def in_processes(
    groups: Sequence[Sequence[Task]], work: Callable[[Task], Done], jobs: int
) -> Iterator[tuple[Sequence[Task], list[Done]]]:
    """Each group with its results, as soon as it is done. Tasks of one group run one after another in one process.

    `work` and the tasks must be picklable: processes are started afresh, because torch's threads do not survive a fork.
    """
    with _one_thread(), ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin) as pool:
        running = {pool.submit(_all, work, group): group for group in sorted(groups, key=len, reverse=True)}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            raise KeyholeError(
                "a process ended in the middle of its work, perhaps for want of memory: what was finished is kept; "
                "call again with fewer jobs."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # a stop: nothing new is begun
            raise


def _all(work: Callable[[Task], Done], group: Sequence[Task]) -> list[Done]:
    return [work(task) for task in group]


def _begin() -> None:
    import torch

    torch.set_num_threads(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """What processes inherit while they start: as many of them as cores, so one thread for each."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ |= dict.fromkeys(_THREADS, "1")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
