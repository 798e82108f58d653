"""How are many items measured at once? In processes of one thread each; what they share on disk is trained by one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from keyhole.errors import KeyholeError
from keyhole.processes import begin_worker, few_threads

Item = TypeVar("Item")
Done = TypeVar("Done")


def in_processes(
    groups: Sequence[Sequence[Item]], work: Callable[[Item], Done], jobs: int
) -> Iterator[tuple[Sequence[Item], list[Done]]]:
    """Each group with its results, as soon as it is done. Tasks of one group run one after another in one process.

    `work` and the tasks must be picklable: processes are started afresh, because torch's threads do not survive a fork.
    """
    with few_threads(), ProcessPoolExecutor(jobs, get_context("spawn"), initializer=begin_worker) as pool:
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


def _all(work: Callable[[Item], Done], group: Sequence[Item]) -> list[Done]:
    return [work(task) for task in group]
