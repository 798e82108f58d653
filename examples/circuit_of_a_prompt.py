"""What is the circuit behind an answer? Traced, told, proved, and written as a page, a picture and data.

python examples/circuit_of_a_prompt.py "When Mary and John went to the store, John gave a drink to" [MODEL]
"""

import sys

import keyhole

prompt = sys.argv[1] if len(sys.argv) > 1 else "When Mary and John went to the store, John gave a drink to"
run = keyhole.load(*sys.argv[2:3]).run(prompt)
circuit = run.trace()  # why the likeliest token? run.trace("Mary", against="John"): rather than John
print(circuit.story())
print(circuit.verify(draws=1))
for name in ("circuit.html", "circuit.svg", "circuit.json"):
    circuit.save(name)
