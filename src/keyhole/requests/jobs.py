"""Who waits for which work? One thread does all of it, in turn; jobs report how far they are, and can be stopped.

The event loop's thread alone changes a job; the worker's thread reads nothing of it but the `stop` flag. Work stops
where it reports progress: the report raises `Stopped`. There, too, long work lets quick work that waits go first, so
that a click is answered while a circuit is verified.
"""

import asyncio
import heapq
import itertools
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from keyhole.errors import KeyholeError
from keyhole.progress import Pace, Progress, duration

State = Literal["queued", "running", "done", "failed", "cancelled"]
Event = tuple[str, bytes]  # its name and its JSON
ENDS = ("result", "error", "cancelled")
_PAUSE = 0.05  # seconds between two reports of progress that are passed on


class Stopped(BaseException):
    """The work is not wanted any more. No Exception, so that code that goes on after errors does not go on here."""


class FullError(KeyholeError):
    """Too many requests are waiting already."""


@dataclass(frozen=True)
class Limits:
    """How much is kept and waited for."""

    waiting: int = 64  # jobs
    kept: int = 32  # finished jobs
    kept_bytes: int = 64 << 20  # of their results
    grace: float = 5.0  # seconds without a listener after which a job is stopped


class Reporter:
    """How work reports: `progress` of one part, and `stage` for work that has several.

    `send` passes a report on: which part of the work, how much of it is done, and how much there is; for work that
    shows what it has so far, that too. `between` is called where the work could rest, before each report.
    """

    def __init__(self, stop: threading.Event, send: Callable[..., None], between: Callable[[], None]) -> None:
        self._stop, self._send, self._between = stop, send, between
        self._last, self._done = 0.0, 0  # when and what was passed on last
        self.keeps = False  # is what was done until the work was stopped an answer, too?

    def check(self, *, alone: bool = False) -> None:
        """Stop here, if the work is not wanted any more; let others go first, unless the work must be `alone`."""
        if self._stop.is_set():
            raise Stopped
        if not alone:
            self._between()

    @property
    def stopping(self) -> bool:
        """Is the work not wanted any more? For work that `keeps` what it has, and ends itself."""
        return self._stop.is_set()

    def progress(self, part: str, *, alone: bool = False) -> Progress:
        """Reports for one named part of the work, which begins now; how long it is, is not known yet.

        `alone`: nobody is let in meanwhile, because the model is not as it was: it is edited, or it is writing.
        """
        self._send(part, 0, 0)

        def report(done: int, total: int) -> None:
            self.check(alone=alone)
            now = time.monotonic()
            begins = done < self._done  # a new part: the end of the last one must not be shown for it
            if now - self._last >= _PAUSE or done >= total or begins:
                self._last, self._done = now, done
                self._send(part, done, total)

        return report

    def pieces(self, part: str, done: int, total: int, **so_far: Any) -> None:
        """Report with all that there is so far: who comes late misses nothing. Nobody is let in meanwhile."""
        now = time.monotonic()
        if now - self._last >= _PAUSE or done >= total or done <= 1:
            self._last, self._done = now, done
            self._send(part, done, total, so_far)

    @contextmanager
    def stage(self, part: str) -> Iterator[Progress]:
        """The same, as the library's `Stage`."""
        self.check()
        yield self.progress(part)


Work = Callable[[Reporter], bytes]


@dataclass(eq=False)
class Job:
    """One piece of work and what became of it."""

    kind: str
    work: Work
    quick: bool
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = "queued"
    progress: bytes | None = None
    last: Event | None = None  # how it ended
    stop: threading.Event = field(default_factory=threading.Event)
    listeners: set[asyncio.Queue[Event]] = field(default_factory=set)
    heard: float = field(default_factory=time.monotonic)  # when somebody last listened

    @property
    def ended(self) -> bool:
        """Is it over?"""
        return self.last is not None


class Jobs:
    """All jobs, and the thread that does them. It is created and called inside a running event loop."""

    def __init__(self, limits: Limits, spell: Callable[[Any], bytes]) -> None:
        self.limits, self._spell = limits, spell
        self._loop = asyncio.get_running_loop()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: list[tuple[bool, int, Job]] = []  # quick ones first, then in order
        self._order, self._ready, self._closed = itertools.count(), threading.Condition(), False
        self._running: Job | None = None
        self._thread = threading.Thread(target=self._work, name="keyhole-worker", daemon=True)
        self._thread.start()

    # -- in the event loop ---------------------------------------------------------------------------------

    def add(self, kind: str, work: Work, *, quick: bool) -> Job:
        """A new job, which waits for its turn."""
        with self._ready:
            if len(self._waiting) >= self.limits.waiting:
                raise FullError(f"{len(self._waiting)} requests are waiting already: try again when some are done.")
            job = Job(kind, work, quick)
            self._jobs[job.id] = job
            heapq.heappush(self._waiting, (not quick, next(self._order), job))
            self._ready.notify()
        self._watch(job)
        return job

    def get(self, number: str) -> Job:
        """A job by its id."""
        if number not in self._jobs:
            raise KeyholeError("there is no such job: it ended long ago, or never was.")
        job = self._jobs[number]
        job.heard = time.monotonic()
        return job

    def ahead(self, job: Job) -> int:
        """How many jobs come before this one."""
        with self._ready:
            place = next((entry[:2] for entry in self._waiting if entry[2] is job), None)
            if place is None:
                return 0  # its turn has come
            return sum(entry[:2] < place for entry in self._waiting) + (self._running is not None)

    @property
    def running(self) -> str | None:
        """The kind of work that is being done now."""
        with self._ready:
            return None if self._running is None else self._running.kind

    def cancel(self, job: Job) -> None:
        """Stop it: at once if it waits, else where it next reports."""
        job.stop.set()
        if job.state == "queued":
            self._forget(job)
            self._end(job, "cancelled", ("cancelled", b"{}"))

    def listen(self, job: Job) -> asyncio.Queue[Event]:
        """A queue of the job's events: how it stands, then what happens. Call `leave` when they are not wanted."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        if job.last is not None:
            queue.put_nowait(job.last)
            return queue
        queue.put_nowait(("queued", self._spell({"ahead": self.ahead(job), "running": self.running})))
        if job.state == "running":
            queue.put_nowait(("started", b"{}"))
        if job.progress is not None:
            queue.put_nowait(("progress", job.progress))
        job.listeners.add(queue)
        return queue

    def leave(self, job: Job, queue: asyncio.Queue[Event]) -> None:
        """Listen no more; a job that nobody listens to is stopped after a while."""
        job.listeners.discard(queue)
        job.heard = time.monotonic()
        self._watch(job)

    def close(self, wait: float = 2.0) -> None:
        """Stop everything, and the thread."""
        for job in list(self._jobs.values()):
            if not job.ended:
                self.cancel(job)
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join(wait)

    @property
    def busy(self) -> bool:
        """Is anything being done, or waiting?"""
        with self._ready:
            return self._running is not None or bool(self._waiting)

    def _watch(self, job: Job) -> None:
        if not job.ended and not job.listeners and not self._loop.is_closed():
            left = self.limits.grace - (time.monotonic() - job.heard)
            self._loop.call_later(max(0.01, left), self._deserted, job)

    def _deserted(self, job: Job) -> None:
        if job.ended or job.listeners:
            return
        if time.monotonic() - job.heard >= self.limits.grace:
            self.cancel(job)
        else:
            self._watch(job)

    def _forget(self, job: Job) -> None:
        with self._ready:
            self._waiting = [entry for entry in self._waiting if entry[2] is not job]
            heapq.heapify(self._waiting)

    def _publish(self, job: Job, event: Event) -> None:
        if job.ended:
            return
        if event[0] == "started":
            job.state = "running"
        if event[0] == "progress":
            job.progress = event[1]
        for queue in job.listeners:
            queue.put_nowait(event)

    def _end(self, job: Job, state: State, event: Event) -> None:
        if job.ended:
            return
        self._publish(job, event)
        job.state, job.last, job.work = state, event, _nothing
        job.listeners.clear()
        self._tidy()

    def _tidy(self) -> None:
        """Forget the oldest finished jobs, as many as are too many."""
        over = [job for job in self._jobs.values() if job.ended]
        size = sum(len(job.last[1]) for job in over if job.last)
        while over and (len(over) > self.limits.kept or (size > self.limits.kept_bytes and len(over) > 1)):
            old = over.pop(0)
            size -= len(old.last[1]) if old.last else 0
            del self._jobs[old.id]

    # -- in the worker's thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._ready:
                self._running = None
                self._ready.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                job = heapq.heappop(self._waiting)[2]
                self._running = job
            self._do(job)
            del job  # its work may hold a run

    def _quick_ones(self) -> None:
        """Quick work that waits, while long work rests between two of its parts."""
        while True:
            with self._ready:
                if not self._waiting or self._waiting[0][0] or self._closed:
                    return
                job = heapq.heappop(self._waiting)[2]
            self._do(job)

    def _do(self, job: Job) -> None:
        paces: dict[str, Pace] = {}  # of each part of the work

        def send(part: str, done: int, total: int, so_far: Mapping[str, Any] = MappingProxyType({})) -> None:
            seconds = (total - done) * paces.setdefault(part, Pace()).each(done)
            left = duration(seconds) if seconds >= 1 else None
            report = self._spell({"what": part, "done": done, "total": total, "left": left, **so_far})
            self._later(self._publish, job, ("progress", report))

        reporter = Reporter(job.stop, send, _nobody if job.quick else self._quick_ones)
        try:
            reporter.check()
            self._later(self._publish, job, ("started", b"{}"))
            result = job.work(reporter)
            if not reporter.keeps:
                reporter.check()  # work that never reports is stopped here
            self._later(self._end, job, "done", ("result", result))
        except Stopped:
            self._later(self._end, job, "cancelled", ("cancelled", b"{}"))
        except KeyholeError as error:
            self._later(self._end, job, "failed", ("error", self._spell({"error": str(error)})))
        except MemoryError:
            sentence = "there is not enough memory for this: give a shorter prompt or a smaller model."
            self._later(self._end, job, "failed", ("error", self._spell({"error": sentence})))
        except Exception as error:  # a fault of ours must not take the worker, and with it every other request
            sentence = f"this went wrong inside Keyhole ({type(error).__name__}: {str(error)[:200]}): please report it."
            self._later(self._end, job, "failed", ("error", self._spell({"error": sentence, "fault": True})))

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it in the event loop; where that has ended, nobody listens any more."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)


def _nothing(reporter: Reporter) -> bytes:
    """What a finished job has in place of its work, which may hold a run."""
    return b""


def _nobody() -> None:
    """Between two reports of quick work nothing else is done."""
