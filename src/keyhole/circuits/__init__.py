"""Circuits: what a trace returns, how it is stored and exported."""

from keyhole.circuits.circuit import Circuit, Edge, Node, Traced
from keyhole.circuits.exports import to_dataframe, to_graphml, to_mib, to_networkx
from keyhole.circuits.files import from_json, load_circuit, save, to_json
from keyhole.circuits.neuronpedia import add_to_viewer, to_neuronpedia
from keyhole.circuits.text import circuit_text

__all__ = [
    "Circuit",
    "Edge",
    "Node",
    "Traced",
    "add_to_viewer",
    "circuit_text",
    "from_json",
    "load_circuit",
    "save",
    "to_dataframe",
    "to_graphml",
    "to_json",
    "to_mib",
    "to_networkx",
    "to_neuronpedia",
]
