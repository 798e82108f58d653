"""Is there one circuit for a task? Many prompts into a store, families, and which heads are in most circuits.

python examples/many_prompts.py [MODEL]
"""

import sys
from collections import Counter

import keyhole

model = keyhole.load(*sys.argv[1:2])
store = keyhole.bulk("ioi", model, n=48, out="ioi.store")  # the same call goes on after any stop
print(store)
print(keyhole.families(store))
heads = Counter(head for _, circuit in store.circuits() for head in {(n.layer, n.head) for n in circuit.heads})
for (layer, head), prompts in heads.most_common(8):
    print(f"{layer}.{head} is in {prompts} circuits")
