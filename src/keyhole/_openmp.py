"""Let waiting OpenMP threads sleep: spinning ones are up to 100 times slower if other processes are busy.

OpenMP reads this once, when torch is first imported. It changes no number, and a user's setting is kept.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
