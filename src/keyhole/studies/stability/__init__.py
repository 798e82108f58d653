"""How much of a circuit stays when something small changes?

variations.py  what can be changed: precision, threshold, wording, a name; and circuits traced again
stability.py   the study, its record, and the floors that other prompts and tasks give; figure.py: how it reads
"""
