"""Tracing: who wrote what a head reads.

explain(run, head, dest, src)        the signals behind one attention weight
trace.trace(run, target)             the circuit behind an answer; trace_many for several runs
trace_svt(run, target)               the same by the 2024 method, with SvtSettings
split(run, layer, pos)               the residual stream over its writers

trace.py       trace, trace_many, by one method or the other; batch.py: from the seeds down, layer by layer
settings.py    what can be chosen
assemble.py    what was found -> Circuit
exactness.py   how exact is Keyhole on this model?
svt.py         the 2024 method; svt_settings.py: what can be chosen about it
answers/       from an answer to the first writers
firings/       why a head attends here
writes/        who wrote what heads read
mlps/          why an MLP wrote this
"""

from keyhole.circuits.records import Removal, Signal, Writer
from keyhole.settings.tracing import TraceOptions as Options
from keyhole.settings.tracing import TraceSettings
from keyhole.tracing.answers import Continuation, Likeliest, NextToken, NextTokens
from keyhole.tracing.batch import Untraced
from keyhole.tracing.both import Both
from keyhole.tracing.exactness import Check, check
from keyhole.tracing.firing import Firing, Side
from keyhole.tracing.linear import Probe
from keyhole.tracing.seeds import Probability
from keyhole.tracing.settings import Settings, SvtSettings
from keyhole.tracing.svt import contributions, trace_svt
from keyhole.tracing.trace import Circuits, trace_many
from keyhole.tracing.why import explain, signal_vector
from keyhole.tracing.writers import Split, split

__all__ = [
    "Both",
    "Check",
    "Circuits",
    "Continuation",
    "Firing",
    "Likeliest",
    "NextToken",
    "NextTokens",
    "Options",
    "Probability",
    "Probe",
    "Removal",
    "Settings",
    "Side",
    "Signal",
    "Split",
    "SvtSettings",
    "TraceSettings",
    "Untraced",
    "Writer",
    "check",
    "contributions",
    "explain",
    "signal_vector",
    "split",
    "trace_many",
    "trace_svt",
]
