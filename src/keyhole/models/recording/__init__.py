"""How does a forward pass become a record, and what can be read off it?

attention.py   the attention rule, and its registration with transformers (with the mask twin)
capture.py     one forward pass with hooks -> notes
records.py     notes -> frozen scales, RoPE tables
stacks.py      one run cut out of a batch, several side by side
reading.py     queries and keys rebuilt from the residual stream
visit.py       one forward pass whose layers are shown in passing and not kept
"""
