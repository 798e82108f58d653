"""Which circuit is behind this answer, by which method? ACC++, or the 2024 one (`svt`)."""

from typing import TYPE_CHECKING, Literal, Unpack

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, require_choice
from keyhole.progress import silent
from keyhole.tracing.answers.targets import Target, Tokens
from keyhole.tracing.levels import Options, trace
from keyhole.tracing.mlps.flow import Through
from keyhole.tracing.svt import trace_svt

if TYPE_CHECKING:
    from keyhole.models.run import Run

Method = Literal["accpp", "svt"]
_ACCPP = {"tau": "dynamic", "keys": "all", "sinks": "keep"}  # what the other method would not heed


def trace_by(
    method: Method, run: "Run", target: Target, *, against: Tokens | None, **options: Unpack[Options]
) -> Circuit:
    """The circuit by `trace` or by `trace_svt`, which has settings of its own and keeps to heads."""
    require_choice("method", method, Method)
    if method == "accpp":
        return trace(run, target, against=against, **options)
    further = isinstance(options.get("through"), Through)
    if further or any(options.get(name, usual) != usual for name, usual in _ACCPP.items()):
        raise KeyholeError(
            "tau, keys, sinks and how to go through MLPs are settings of the method accpp: leave them out. Those of "
            "svt (start, threshold, share, channels) are options of keyhole.tracing.trace_svt."
        )
    told, seeds = options.get("progress") or silent, options.get("seeds")
    return trace_svt(run, target, against=against, seeds=seeds, end=options.get("end", -1), progress=told)
