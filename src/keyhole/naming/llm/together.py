"""How are many requests answered? A few at a time; a stop loses nothing that was paid for."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from keyhole.errors import KeyholeError
from keyhole.naming.llm.gate import StoppedError
from keyhole.naming.llm.reply import Reply
from keyhole.naming.llm.request import Request
from keyhole.naming.llm.send import GaveUpError, send
from keyhole.naming.llm.talk import Talk
from keyhole.progress import Progress, silent


def missing(talk: Talk, requests: Iterable[Request]) -> list[Request]:
    """Those that were not answered yet, each once."""
    return [one for one in {one.digest: one for one in requests}.values() if talk.known(one) is None]


def send_all(talk: Talk, requests: Sequence[Request], *, progress: Progress = silent) -> None:
    """Answer all of them into the transcript; raises KeyholeError if some could not be.

    The first goes alone: what is wrong with URL, key or model shows at once, and whether there are log-probabilities.
    At a stop (control-C, too) nothing new is sent, and what is on the way is waited for and kept.
    """
    left = missing(talk, requests)
    lost, row, done, stopped = list[GaveUpError](), 0, 0, False
    try:
        with ThreadPoolExecutor(talk.endpoint.patience.workers) as pool, _stopping(talk):
            for one in _answers(pool, talk, left):
                row = row + 1 if isinstance(one, GaveUpError) else 0
                lost += [one] if isinstance(one, GaveUpError) else []
                if row >= talk.endpoint.patience.failures or len(lost) > done:  # gone, or never there
                    break
                done += not row
                progress(done, len(left))
    except StoppedError:
        stopped = True
    finally:
        talk.gate.stop.clear()
    if lost or stopped:
        kept = len(left) - len(missing(talk, left))
        told = f"{kept} of {len(left)} requests were answered and are kept in {talk.transcript.path}: go on later."
        raise KeyholeError(f"{lost[-1] if lost else 'stopped:'} {told}")


@contextmanager
def _stopping(talk: Talk) -> Iterator[None]:
    """However it ends, the workers are told."""
    try:
        yield
    finally:
        talk.gate.stop.set()


def _answers(pool: ThreadPoolExecutor, talk: Talk, requests: Sequence[Request]) -> Iterable[Reply | GaveUpError]:
    """As they come, no more on the way than there are workers."""
    waiting, running = iter(requests), set[Future[Reply]]()
    for one in waiting:
        running.add(pool.submit(send, talk, one))
        first = len(running) == 1 and one is requests[0]
        if first or len(running) == talk.endpoint.patience.workers:
            ready, running = wait(running, return_when=FIRST_COMPLETED)
            yield from map(_outcome, ready)
    while running:
        ready, running = wait(running, return_when=FIRST_COMPLETED)
        yield from map(_outcome, ready)


def _outcome(future: Future[Reply]) -> Reply | GaveUpError:
    error = future.exception()
    if isinstance(error, GaveUpError):
        return error
    return future.result()
