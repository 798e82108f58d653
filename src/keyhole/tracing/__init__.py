"""Tracing: who wrote what a head reads.

explain(run, head, dest, src)        the signals behind one attention weight
trace(run, target, against=...)      the circuit behind an answer; trace_many for several runs
trace_svt(run, target)               the same by the 2024 method
split(run, layer, pos)               the residual stream over its writers
"""

from keyhole.circuits.writer import Removal, Signal, Writer
from keyhole.tracing.assemble import Settings
from keyhole.tracing.batch import Untraced
from keyhole.tracing.exactness import Check, check
from keyhole.tracing.firing import Firing, Side
from keyhole.tracing.levels import Options, trace, trace_many
from keyhole.tracing.likelihood import Probability
from keyhole.tracing.linear import Probe
from keyhole.tracing.signals import signal_vector
from keyhole.tracing.svt import contributions, trace_svt
from keyhole.tracing.targets import Likeliest
from keyhole.tracing.why import explain
from keyhole.tracing.writers import Split, split

__all__ = [
    "Check",
    "Firing",
    "Likeliest",
    "Options",
    "Probability",
    "Probe",
    "Removal",
    "Settings",
    "Side",
    "Signal",
    "Split",
    "Untraced",
    "Writer",
    "check",
    "contributions",
    "explain",
    "signal_vector",
    "split",
    "trace",
    "trace_many",
    "trace_svt",
]
