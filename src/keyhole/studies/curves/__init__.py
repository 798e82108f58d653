"""Which edges carry an answer? Methods' best edges are kept, the rest is cut, and what is left is measured.

settings.py       what can be chosen
cohort.py         the prompts, and what stands in for what is cut
attribution.py    EAP, EAP-IG-inputs and GIM; edge_scores.py: what each method thinks of every edge, prompt by prompt
ranked.py         in which order edges are kept; cutting.py: what is left with the best
curves.py         all of it; faithfulness.py: the record, its areas (CPR, CMD), distances, and how it reads
"""
