"""How much of a circuit stays when the question is asked a little differently?

variations.py     what can be changed: precision, threshold, wording, a name (again.py: and traced again)
floors.py         what other prompts and tasks have in common, which a change must be above
stability.py      all of it; stays.py: the record, and how it reads
"""
