"""How do circuits differ? Terms, signals, effects and scores of two stores, families, circuits or published ones.

compare.py     `keyhole.compare`: two sides (operands.py), in every way that there is; told.py: how that reads
terms.py       what both have, and how often
signals.py     what heads are told in two circuits, beside pairs of other prompts (members.py)
exclusive.py   edges that one circuit has alone (placed.py), removed in both families, beside controls
unified.py     many circuits as one, pruned by frequency; effects.py: by what each edge does to the answer
score.py       precision, recall and F1 against published circuits (published.py)
"""
