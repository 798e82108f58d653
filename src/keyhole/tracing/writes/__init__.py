"""Who wrote the residual stream, and what do heads read of it?

writers.py    the exact split of the residual stream
written.py    what one writer writes, and what a head reads of it
upstream.py   Writes: everything that was written in some runs
patterns.py   attention rows, columns and weighted sums, on demand
reads.py      everything below a layer, projected onto what its heads read
rows.py       which rows belong together: of a layer, a head, a run
"""
