"""How is a bulk run done on this machine? In this process, or in several, each with its own copy of the model."""

import logging
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context

from keyhole.errors import KeyholeError
from keyhole.many.blocks import Block
from keyhole.many.worker import Done, Job, Parts, made, work
from keyhole.models.model import Model
from keyhole.processes import begin_worker, few_threads

_LOG = logging.getLogger("keyhole")
_RETRIES = 3  # times that processes may die without a block being finished in between


@dataclass(frozen=True)
class Local:
    """On this machine: with one worker in this process, with more in processes of their own."""

    workers: int = 1  # processes

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise KeyholeError(f"workers is {self.workers}, but someone has to work: give at least 1.")

    @property
    def here(self) -> bool:
        """Is this machine's speed the workers'?"""
        return True

    def trace(self, model: Model, job: Job, blocks: Sequence[Block]) -> Parts:
        """Each block with its part as soon as it is done, in any order."""
        if self.workers == 1:
            yield from _in_this_process(model, job, blocks)
        else:
            yield from _in_processes(job, blocks, self.workers)


def _in_this_process(model: Model, job: Job, blocks: Sequence[Block]) -> Parts:
    for block in blocks:
        try:
            done: Done = made(model, job, block)
        except KeyholeError as error:
            done = error
        yield block, done


def _in_processes(job: Job, blocks: Sequence[Block], workers: int) -> Parts:
    """The same in processes; when one dies, its pool is lost, and what is not finished is begun again in another."""
    left, lost = {block.number: block for block in blocks}, 0
    while left:
        try:
            for block, done in _in_pool(job, list(left.values()), workers):
                del left[block.number]
                lost = 0
                yield block, done
        except BrokenProcessPool as error:
            lost += 1
            if lost > _RETRIES:
                at = ", ".join(str(number) for number in islice(left, workers))
                raise KeyholeError(
                    f"workers died {lost} times in a row, with parts {at} in hand, perhaps for want of memory: what "
                    "was finished is kept. Go on with fewer workers, or begin anew with a smaller batch."
                ) from error
            _LOG.info("a worker died, perhaps for want of memory: what it had in hand is traced again.")


def _in_pool(job: Job, blocks: Sequence[Block], workers: int) -> Parts:
    threads, todo = job.tracing.threads, iter(blocks)
    pool = ProcessPoolExecutor(min(workers, len(blocks)), get_context("spawn"), initializer=_begin, initargs=(threads,))
    running: dict[Future[Done], Block] = {}
    try:
        while True:
            for block in islice(todo, 2 * workers - len(running)):  # one waits behind each, so that none is idle
                with few_threads(threads):  # processes start at a submission
                    running[pool.submit(work, job, block)] = block
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    except BaseException:  # a stop, or a death: nobody waits for what is still being traced
        for process in list((pool._processes or {}).values()):  # public from Python 3.14 on, as kill_workers
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(threads: int) -> None:
    """Ctrl-C reaches every process of a terminal: who began the workers ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin_worker(threads)
