"""Do two prompts share a circuit? What both have, what only one has, and how alike they are.

python examples/two_prompts.py [MODEL]
"""

import sys

import keyhole

model = keyhole.load(*sys.argv[1:2])
prompts = {
    "Mary": "When Mary and John went to the store, John gave a drink to",
    "John": "When Mary and John went to the store, Mary gave a drink to",
}
one, other = (model.run(text).trace(answer) for answer, text in prompts.items())
print(keyhole.compare(one, other))
