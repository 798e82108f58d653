"""How are the slides measured that show what no paper does? Signals, one circuit, families, and attention sinks.

signals.py, single.py    what single circuits and heads show
families.py              the circuits of the published prompts, traced once for all that follow; their families
groups.py                what averages over them mix; does one circuit stand for a family?
names.py, solved.py      signals of such prompts, named; how each order finds IO
orders.py                both orders of names: what heads are told, and what edges do
"""
