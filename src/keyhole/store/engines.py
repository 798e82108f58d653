"""Who traces? This process, local processes, or a Ray cluster.

How is a bulk run done on this machine? In this process, or in several, each with its own copy of the model.
"""

import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from multiprocessing import get_context
from typing import Any, Literal, Protocol, get_args

from keyhole.errors import KeyholeError, require_choice
from keyhole.models.model import Model
from keyhole.progress import begin_worker, few_threads
from keyhole.store.batches import Block
from keyhole.store.workers import Done, Job, Parts, part_by, work

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
        """Each block with its part as soon as it is done, in any order.

        Args:
            model: The model.
            job: What is to be traced, and how.
            blocks: The prompts, part by part.
        """
        if self.workers == 1:
            yield from _in_this_process(model, job, blocks)
        else:
            yield from _in_processes(job, blocks, self.workers)


def _in_this_process(model: Model, job: Job, blocks: Sequence[Block]) -> Parts:
    for block in blocks:
        try:
            done: Done = part_by(model, job, block)
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


# How is a bulk run done on a cluster? By Ray's actors, each with its own copy of the model.
#
# Ray restarts an actor that is lost and gives it its block again. Blocks are handed to actors that are there and have
# nothing to do; what comes back is a part of the store, which this process writes: no storage is shared, and nothing
# of Ray's has to be kept to go on later.

_PATIENCE = 20.0  # seconds until a machine should have answered


@dataclass(frozen=True)
class Ray:
    """On a Ray cluster: that of `address` (or RAY_ADDRESS), the one this process is in, or one made here meanwhile."""

    workers: int | None = None  # None: as many as the cluster has room for
    address: str | None = None  # of a cluster that is there; None: one of its own

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise KeyholeError(f"workers is {self.workers}, but someone has to work: give at least 1.")
        if find_spec("ray") is None:
            raise KeyholeError("the engine ray needs one more package: pip install 'keyhole[ray]'.")

    @property
    def here(self) -> bool:
        """Is this machine's speed the workers'?"""
        return self._address == "local"

    @property
    def _address(self) -> str:
        return self.address or os.environ.get("RAY_ADDRESS") or "local"

    def trace(self, model: Model, job: Job, blocks: Sequence[Block]) -> Parts:
        """Each block with its part as soon as it is done, in any order.

        Args:
            model: The model.
            job: What is to be traced, and how.
            blocks: The prompts, part by part.
        """
        import ray

        needs = {"num_cpus": job.tracing.threads, "num_gpus": 1 if job.source.device == "cuda" else 0}
        with _cluster(ray, self._address, None if self.workers is None else self.workers * job.tracing.threads):
            workers = min(self.workers or _room(ray, needs), len(blocks))
            actor = ray.remote(max_restarts=_RETRIES, max_task_retries=_RETRIES, **needs)(Tracer)
            actors = [actor.remote() for _ in range(workers)]
            try:
                yield from _hand_out(ray, actors, ray.put(job), blocks)  # put there once, not with every block
            finally:
                for actor in actors:
                    ray.kill(actor)


class Tracer:
    """An actor: `work`, one block at a time, in a process that keeps the model (`load_again`)."""

    def ready(self) -> None:
        """Answers once the actor is there."""

    def trace(self, job: Job, block: Block) -> Done:
        """A block as a part."""
        return work(job, block)


def _hand_out(ray: Any, actors: Sequence[Any], job: Any, blocks: Sequence[Block]) -> Parts:
    """A block to every actor that is there and free, until all are done.

    An actor that finds no more to do makes room: one that was lost with its machine can then be restarted there.
    """
    todo, left = iter(blocks), len(blocks)
    running: dict[Any, tuple[Any, Block | None]] = {actor.ready.remote(): (actor, None) for actor in actors}
    while left:
        (ref,), _ = ray.wait(list(running), num_returns=1)
        actor, block = running.pop(ref)
        done = _got(ray, ref, block)
        following = next(todo, None)
        if following is None:
            ray.kill(actor)
        else:
            running[actor.trace.remote(job, following)] = (actor, following)
        if block is not None:
            left -= 1
            yield block, done


def _got(ray: Any, ref: Any, block: Block | None) -> Done:
    """What came back; what Ray itself could not do, in our words."""
    try:
        done: Done = ray.get(ref)
    except ray.exceptions.RayError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        at = "a worker could not begin" if block is None else f"part {block.number} was given up"
        raise KeyholeError(
            f"{at}: {said} Workers were restarted {_RETRIES} times at most; every machine of the cluster needs "
            "Keyhole, the model and memory for both. What was finished is kept."
        ) from error
    return done


@contextmanager
def _cluster(ray: Any, address: str, cpus: int | None) -> Iterator[None]:
    """A cluster to work on; what is begun here is ended here, and nothing else."""
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        _require_reachable(address)
        if address == "local":
            ray.init(address, num_cpus=cpus, include_dashboard=False, **quiet)
        else:
            ray.init(address, **quiet)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise KeyholeError(f"cannot reach a Ray cluster at {address}: {said}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Does anyone answer at host:port? Ray itself would try for a quarter of an hour."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


def _room(ray: Any, needs: dict[str, int]) -> int:
    """How many workers fit into the cluster."""
    has, kinds = ray.cluster_resources(), {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"]}
    return max(1, int(min(has.get(kind, 0) // needed for kind, needed in kinds.items() if needed)))


# Who traces? An engine takes blocks and gives parts back, as they are done; the driver alone writes them.

EngineName = Literal["local", "ray"]


class Engine(Protocol):
    """What `bulk` needs of one."""

    @property
    def workers(self) -> int | None:
        """How many work at the same time; None: as many as there is room for."""

    @property
    def here(self) -> bool:
        """Is this machine's speed the workers'?"""

    def trace(self, model: Model, job: Job, blocks: Sequence[Block]) -> Parts:
        """Each block with its part as soon as it is done, in any order."""


def engine_of(engine: EngineName | Engine) -> Engine:
    """An engine by its name, or as it is given."""
    if not isinstance(engine, str):
        return engine
    require_choice("engine", engine, EngineName)
    return Local() if engine == get_args(EngineName)[0] else Ray()
