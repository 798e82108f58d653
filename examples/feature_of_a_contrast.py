"""Which feature tells these keys from those? Boxes: heads ranked by a contrast, and what a swap of the feature does.

python examples/feature_of_a_contrast.py [MODEL]
"""

import sys

import keyhole
from keyhole.tasks import boxes

model = keyhole.load(*sys.argv[1:2])
samples = boxes(120, n_boxes=4)  # "The jam is in box E, the ... Which box is the jam in? Box"
asked = keyhole.Contrast.from_roles("the right box", samples, query="END", positive="BOX", negative="box_*")
found = model.contrast(asked)
print(found)
swap = found.heads[0].swap()  # the feature's coordinates of the right key and of another one change places
print(f"attention moved {swap.shift:.3f}; random subspaces {swap.random:.3f}; whole keys {swap.full:.3f}")
