"""Threads that wait should sleep: beside another busy process, spinning OpenMP threads can be 100 times slower.

OpenMP reads this once, when torch is first imported. It changes no number, and a setting of the user's stays.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
