"""Keyhole: why does this attention head attend here?

Public names and packages are imported when they are first used (PEP 562): `import keyhole` alone, and with it the
command line's help, takes milliseconds and not the seconds that torch and transformers take. Type checkers and editors
read the imports below as they stand.
"""

from typing import TYPE_CHECKING, Any

from keyhole import _openmp as _openmp  # before torch loads
from keyhole.errors import KeyholeError as KeyholeError
from keyhole.version import __version__ as __version__

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit as Circuit
    from keyhole.comparison.compare import compare as compare
    from keyhole.contrast.data.sites import Contrast as Contrast
    from keyhole.family.families import families as families
    from keyhole.many.driver import bulk as bulk
    from keyhole.models.loading.load import load as load
    from keyhole.models.model import Model as Model
    from keyhole.models.run import Run as Run
    from keyhole.naming.naming import name as name
    from keyhole.qk.channels import Channels as Channels
    from keyhole.qk.firings import Firings as Firings
    from keyhole.sink.explore import sinks as sinks
    from keyhole.store.store import open_store as open_store
    from keyhole.tracing.answers.likelihood import Probability as Probability
    from keyhole.tracing.answers.linear import Probe as Probe
    from keyhole.tracing.answers.targets import Likeliest as Likeliest
    from keyhole.tracing.batch import Untraced as Untraced
    from keyhole.tracing.exactness import check as check
    from keyhole.tracing.firings.firing import Firing as Firing
    from keyhole.tracing.mlps.flow import Through as Through
    from keyhole.tracing.svt_settings import SvtSettings as SvtSettings
    from keyhole.tracing.trace import trace_many as trace_many


__all__ = [
    "Channels",
    "Circuit",
    "Contrast",
    "Firing",
    "Firings",
    "KeyholeError",
    "Likeliest",
    "Model",
    "Probability",
    "Probe",
    "Run",
    "SvtSettings",
    "Through",
    "Untraced",
    "bulk",
    "check",
    "compare",
    "families",
    "load",
    "name",
    "open_store",
    "sinks",
    "trace_many",
]

_HOMES = {
    "Channels": "keyhole.qk.channels",
    "Circuit": "keyhole.circuits.circuit",
    "Contrast": "keyhole.contrast.data.sites",
    "Firing": "keyhole.tracing.firings.firing",
    "Firings": "keyhole.qk.firings",
    "Likeliest": "keyhole.tracing.answers.targets",
    "Model": "keyhole.models.model",
    "Probability": "keyhole.tracing.answers.likelihood",
    "Probe": "keyhole.tracing.answers.linear",
    "Run": "keyhole.models.run",
    "SvtSettings": "keyhole.tracing.svt_settings",
    "Through": "keyhole.tracing.mlps.flow",
    "Untraced": "keyhole.tracing.batch",
    "bulk": "keyhole.many.driver",
    "check": "keyhole.tracing.exactness",
    "families": "keyhole.family.families",
    "compare": "keyhole.comparison.compare",
    "load": "keyhole.models.loading.load",
    "name": "keyhole.naming.naming",
    "open_store": "keyhole.store.store",
    "sinks": "keyhole.sink.explore",
    "trace_many": "keyhole.tracing.trace",
}
_PACKAGES = (
    *(
        "bridges",
        "circuits",
        "comparison",
        "contrast",
        "discover",
        "faithful",
        "family",
        "figures",
        "intervene",
        "lab",
        "many",
    ),
    *("models", "naming", "qk", "shared", "sink", "stable", "store", "story", "tasks", "tracing"),
)

if not TYPE_CHECKING:  # a type checker would take it for a promise that every name exists

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _HOMES:
            globals()[name] = getattr(import_module(_HOMES[name]), name)
            return globals()[name]
        if name in _PACKAGES:
            return import_module(f"keyhole.{name}")
        raise AttributeError(f"module 'keyhole' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*__all__, *_PACKAGES, "__version__"])  # what users may use, and not what this file imports
