"""Which vector is a circuit's signal? What its writer put into the channels, where a dictionary's directions are.

`raw` vectors are parts of the residual stream as it was written, which is what autoencoders are trained on; `rotated`
ones are what the head compares.
"""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import fresh_run
from keyhole.tracing.firings.firing import Firing
from keyhole.tracing.firings.signals import Flavour, signal_vector

if TYPE_CHECKING:
    from keyhole.models.model import Model


def edge_vector(
    circuit: Circuit, edge: int, model: "Model | None" = None, *, flavour: Flavour = "raw"
) -> Float[Tensor, "d_model"]:
    """The signal of an edge, by its number; a circuit from a file needs the `model` that made it."""
    if not 0 <= edge < len(circuit.edges):
        raise KeyholeError(f"there is no edge {edge}: this circuit has edges 0 to {len(circuit.edges) - 1}.")
    own = circuit.edges[edge]
    into, weight = circuit.nodes[own.target], circuit.attention[own.target]
    if own.side not in ("dest", "src"):
        raise KeyholeError(f"edge {edge} ends at an answer, an MLP or a value: it is no signal, and has no channels.")
    assert into.layer is not None and into.head is not None and weight is not None
    run = fresh_run(circuit, model)
    firing = Firing(into.layer, into.head, into.dest, into.src, weight, 0.0, 0, (), run)
    signal = circuit.signal(own)
    return signal_vector(firing, signal, flavour=flavour)


def signal_numbers(circuit: Circuit) -> list[int]:
    """The edges that have a vector, strongest first; constants of a head itself are written nowhere."""
    found = [i for i, edge in enumerate(circuit.edges) if edge.side in ("dest", "src")]
    written = [i for i in found if circuit.nodes[circuit.edges[i].source].kind != "offset"]
    return sorted(written, key=lambda i: -circuit.edges[i].weight)
