"""Draws the circuit of the README: what ends at MLPs, and what goes on through them to the words.

python tools/circuit_picture.py docs/circuit.png
"""

import sys

import keyhole
from keyhole.figures.circuit import circuit_figure

PROMPT = "When Mary and John went to the store, John gave a drink to"

if __name__ == "__main__":
    run = keyhole.load().run(PROMPT)
    circuits = [run.trace("Mary", against="John", through=through) for through in ("heads", "mlps")]
    titles = ("A circuit that ends at MLPs", "The same, through MLPs, to the words")
    figure = circuit_figure(*circuits, titles=titles)
    figure.suptitle(f"Why does the organism answer “Mary” rather than “John”?  {PROMPT} ...", fontsize=11)
    figure.savefig(sys.argv[1], dpi=150)
