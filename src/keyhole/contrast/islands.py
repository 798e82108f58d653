"""Which things hang together? Connected parts of a graph given by its links."""

from collections.abc import Iterable


def islands(n: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """A number for each of n things, the same for those that links join, directly or not.

    >>> islands(4, [(0, 2), (2, 3)])
    [0, 1, 0, 0]
    """
    parent = list(range(n))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for a, b in links:
        a, b = root(a), root(b)
        parent[max(a, b)] = min(a, b)
    return [root(i) for i in range(n)]
