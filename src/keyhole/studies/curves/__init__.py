"""Which edges carry an answer? Methods' best edges are kept, the rest is cut, and what is left is measured.

settings.py     what can be chosen
cohort.py       the prompts, and what stands in for cut edges
attribution.py  EAP, EAP-IG-inputs and GIM; scores.py: the scores of every method, prompt by prompt
cutting.py      the order in which edges are kept, and what is left of answers with the best
curves.py       the study of methods; record.py: its record and its areas (CPR, CMD); figure.py: how it reads
splits.py       one circuit for all prompts, or one for each group; split_record.py: its record
"""
