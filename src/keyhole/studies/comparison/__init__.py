"""How do circuits differ? Terms, signals, effects and scores of two stores, families, circuits or published ones.

compare.py     `keyhole.compare`: all comparisons of two sides; report.py, figure.py: how they read
operands.py    what can be a side; which terms both have, and how often
signals.py     what heads receive in two circuits, compared with pairs of other prompts
exclusive.py   edges that one circuit has alone, removed in both families and compared with controls
unified.py     many circuits as one, pruned by frequency; published circuits
score.py       precision, recall and F1 against published circuits; pruning by what edges do to the answer
"""
