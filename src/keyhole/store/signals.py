"""What do a circuit's signals look like? Vectors in residual space, while the run that made it is at hand."""

from typing import TYPE_CHECKING

from jaxtyping import Float32

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    import numpy as np


def signal_vectors(circuit: Circuit) -> "dict[int, Float32[np.ndarray, 'd_model']]":
    """The vector of every signal by the number of its edge, as the head compares it (`rotated`), rounded to float32."""
    from keyhole.tracing.firings.firing import Firing
    from keyhole.tracing.firings.signals import signal_vector

    if circuit.run is None:
        raise KeyholeError("signals are vectors of the run, which this circuit came without: trace it again.")
    found = {}
    for number, edge in enumerate(circuit.edges):
        if edge.side not in ("dest", "src"):
            continue
        into, weight = circuit.nodes[edge.target], circuit.attention[edge.target]
        assert into.layer is not None and into.head is not None and weight is not None
        firing = Firing(into.layer, into.head, into.dest, into.src, weight, 0.0, 0, (), circuit.run)
        found[number] = signal_vector(firing, circuit.signal(edge)).float().cpu().numpy()
    return found
