"""Which circuit is behind this answer, by which method? ACC++, or the 2024 one (`svt`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, require_choice
from keyhole.progress import silent
from keyhole.tracing.answers.targets import Target, Tokens
from keyhole.tracing.levels import Options, trace
from keyhole.tracing.mlps.flow import Through
from keyhole.tracing.svt import trace_svt
from keyhole.tracing.svt_settings import SvtSettings

if TYPE_CHECKING:
    from keyhole.models.run import Run

Method = Literal["accpp", "svt"]
MethodOption = Method | SvtSettings
_ACCPP = {"tau": "dynamic", "keys": "all", "sinks": "keep"}  # what the other method would not heed


def svt_of(method: MethodOption) -> SvtSettings | None:
    """The settings of svt, which "svt" stands for the usual ones of; None: the method is accpp."""
    if isinstance(method, SvtSettings):
        return method
    require_choice("method", method, Method)
    return SvtSettings() if method == "svt" else None


def require_no_accpp(options: Mapping[str, Any]) -> None:
    """Refuse options that svt would not heed; a plain `through` is no refusal, since svt keeps to heads anyway."""
    further = isinstance(options.get("through"), Through)
    if further or any(options.get(name, usual) != usual for name, usual in _ACCPP.items()):
        raise KeyholeError(
            "tau, keys, sinks and how to go through MLPs are settings of the method accpp: leave them out. Those of "
            "svt are threshold, share, channels and start (in Python a keyhole.SvtSettings)."
        )


def trace_by(
    method: MethodOption, run: "Run", target: Target, *, against: Tokens | None, **options: Unpack[Options]
) -> Circuit:
    """The circuit by `trace` or by `trace_svt`, which has settings of its own and keeps to heads."""
    settings = svt_of(method)
    if settings is None:
        return trace(run, target, against=against, **options)
    require_no_accpp(options)
    progress, seeds = options.get("progress") or silent, options.get("seeds")
    end = options.get("end", -1)
    return trace_svt(run, target, against=against, settings=settings, seeds=seeds, end=end, progress=progress)
