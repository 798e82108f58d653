"""Can the numbers be relied on? Precise enough, finite, exact, and unchanged since we last looked.

precision.py   float32 or better, without TensorFloat-32
finite.py      NaN and infinity, refused where they enter
tolerance.py   when a decomposition is exact
stamps.py      have the weights changed?
"""
