"""Which things hang together? Connected parts of a graph given by its links."""

from collections.abc import Iterable


def islands(n: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """A number for each of n things, the same for those that links join, directly or not.

    >>> islands(4, [(0, 2), (2, 3)])
    [0, 1, 0, 0]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = list(links)
    graph = coo_array(([1] * len(pairs), ([a for a, _ in pairs], [b for _, b in pairs])), shape=(n, n))
    return list(map(int, connected_components(graph, directed=False)[1]))
