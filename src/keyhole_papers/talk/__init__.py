"""How are the slides measured that show what no paper does? Signals, one circuit, families, and attention sinks.

signals.py, one_circuit.py, sinks.py    what single circuits and heads show
study.py                                the circuits of the published prompts, traced once for all that follow
averages.py, families.py                what averages over them mix, and what families they fall into
representatives.py                      does one circuit stand for a family?
names.py                                signals of such prompts, named: how many names are right?
ways.py, solved.py                      how each order finds IO: what its signals follow when the order is turned
same_heads.py, exclusive.py             both orders of names: what heads are told, and what edges do
"""
