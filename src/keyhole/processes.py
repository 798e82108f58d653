"""How are worker processes begun? With few threads each, since there are many of them; none outlives who began it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process

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
