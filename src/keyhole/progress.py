"""How far is a long piece of work? What the library calls while it works, and whoever shows progress provides."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Progress = Callable[[int, int], None]  # done, total
Stage = Callable[[str], AbstractContextManager[Progress]]  # one named part of the work


def silent(done: int, total: int) -> None:
    """Show nothing."""


@contextmanager
def quiet(what: str) -> Iterator[Progress]:
    """A stage whose progress is not shown."""
    yield silent
