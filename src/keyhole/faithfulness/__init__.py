"""What carries an answer? Passes with a mask on every edge: effects, shares, circuits that suffice.

baseline(run)        what stands in for writers that are taken away
backups(circuit)     which heads take over when another is removed
effects(circuit)     what the answer loses without each token, node and edge; how much of it the circuit carries
verify(circuit)      every part of a circuit: is it as predicted, and does the answer need it?
sufficient(run)      the smallest circuit that carries the answer by itself
"""

from keyhole._exports import keep_names
from keyhole.faithfulness.backup_record import Backups
from keyhole.faithfulness.backups import PairSettings, backups
from keyhole.faithfulness.baseline import Baseline, baseline
from keyhole.faithfulness.causes import Arithmetic, Cause, Causes
from keyhole.faithfulness.effects import effects
from keyhole.faithfulness.removals import Row, Verification
from keyhole.faithfulness.sufficient import sufficient
from keyhole.faithfulness.verification import verify

__all__ = [
    "Arithmetic",
    "Backups",
    "Baseline",
    "Cause",
    "Causes",
    "PairSettings",
    "Row",
    "Verification",
    "backups",
    "baseline",
    "effects",
    "sufficient",
    "verify",
]

keep_names(__name__)
