"""Keyhole: why does this attention head attend here?

Public names and packages are imported when they are first used (PEP 562): `import keyhole` alone, and with it the
command line's help, takes milliseconds and not the seconds that torch and transformers take. Type checkers and editors
read the imports below as they stand.
"""

from typing import TYPE_CHECKING, Any

from keyhole import _moved
from keyhole import _openmp as _openmp  # before torch loads
from keyhole.errors import KeyholeError as KeyholeError
from keyhole.version import __version__ as __version__

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit as Circuit
    from keyhole.claims.testing import claim as claim
    from keyhole.features.contrast.sites import Contrast as Contrast
    from keyhole.features.focus import focus as focus
    from keyhole.models.load import load as load
    from keyhole.models.model import Model as Model
    from keyhole.models.run import Run as Run
    from keyhole.naming.naming import name as name
    from keyhole.qk.channels import Channels as Channels
    from keyhole.qk.firings import FiringTable as FiringTable
    from keyhole.settings.tracing import Probability as Probability
    from keyhole.settings.tracing import SvtSettings as SvtSettings
    from keyhole.settings.tracing import Through as Through
    from keyhole.store.driver import bulk as bulk
    from keyhole.store.store import open_store as open_store
    from keyhole.studies.comparison.compare import compare as compare
    from keyhole.studies.families.families import families as families
    from keyhole.studies.sinks.explore import sinks as sinks
    from keyhole.tracing.answers import Continuation as Continuation
    from keyhole.tracing.answers import Likeliest as Likeliest
    from keyhole.tracing.batch import Untraced as Untraced
    from keyhole.tracing.exactness import check as check
    from keyhole.tracing.firing import Firing as Firing
    from keyhole.tracing.linear import Probe as Probe
    from keyhole.tracing.trace import trace_many as trace_many


__all__ = [
    "Channels",
    "Circuit",
    "Continuation",
    "Contrast",
    "Firing",
    "FiringTable",
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
    "claim",
    "compare",
    "families",
    "focus",
    "load",
    "name",
    "open_store",
    "sinks",
    "trace_many",
]

_HOMES = {
    "Channels": "keyhole.qk.channels",
    "Circuit": "keyhole.circuits.circuit",
    "Continuation": "keyhole.tracing.answers",
    "Contrast": "keyhole.features.contrast.sites",
    "Firing": "keyhole.tracing.firing",
    "FiringTable": "keyhole.qk.firings",
    "Likeliest": "keyhole.tracing.answers",
    "Model": "keyhole.models.model",
    "Probability": "keyhole.settings.tracing",
    "Probe": "keyhole.tracing.linear",
    "Run": "keyhole.models.run",
    "SvtSettings": "keyhole.settings.tracing",
    "Through": "keyhole.settings.tracing",
    "Untraced": "keyhole.tracing.batch",
    "bulk": "keyhole.store.driver",
    "check": "keyhole.tracing.exactness",
    "claim": "keyhole.claims.testing",
    "families": "keyhole.studies.families.families",
    "compare": "keyhole.studies.comparison.compare",
    "focus": "keyhole.features.focus",
    "load": "keyhole.models.load",
    "name": "keyhole.naming.naming",
    "open_store": "keyhole.store.store",
    "sinks": "keyhole.studies.sinks.explore",
    "trace_many": "keyhole.tracing.trace",
}
_PACKAGES = (
    *("circuits", "claims", "edits", "faithfulness", "features", "figures", "generation", "intervene", "lab", "models"),
    *("naming", "qk", "store", "studies", "tasks", "tracing"),
)
_moved.install()

if not TYPE_CHECKING:  # a type checker would take it for a promise that every name exists

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _HOMES:
            globals()[name] = getattr(import_module(_HOMES[name]), name)
            return globals()[name]
        if name in _PACKAGES:
            return import_module(f"keyhole.{name}")
        if name in _moved.NAMES["keyhole"]:
            return _moved.names_of("keyhole")(name)
        if f"keyhole.{name}" in _moved.MOVED:
            return _moved.alias(f"keyhole.{name}")
        raise AttributeError(f"module 'keyhole' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*__all__, *_PACKAGES, "__version__"])  # what users may use, and not what this file imports
