"""Is the circuit that tracing finds the right one? A transformer whose weights are written down, and its true circuit.

known = build("French : big cat , red dog . big")
circuit = known.model.run(known.prompt).trace(known.answer, against=known.against, through="mlps")
compare(circuit, known.truth)                  precision and recall, over nodes and over edges
"""

from keyhole.lab.known.truth import Comparison, Known, Truth, build, compare

__all__ = ["Comparison", "Known", "Truth", "build", "compare"]
