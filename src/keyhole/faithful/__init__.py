"""Which edges carry an answer? Methods' best edges are kept, the rest is cut, and what is left is measured.

masked.py         a forward pass with a mask on every edge; wiring.py: which there are; blocks.py: what a layer does
cohort.py         the prompts, and what stands in for what is cut
edge_scores.py    what each method thinks of every edge
curves.py         all of it; faithfulness.py: the record, its areas (CPR, CMD) and how it reads
"""
