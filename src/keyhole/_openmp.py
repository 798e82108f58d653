"""Let idle OpenMP threads sleep instead of spin: spinning is up to 100 times slower when other processes are busy.

OpenMP reads this variable once, when torch is first imported. It affects speed only, and a value that the user has set
is kept.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
