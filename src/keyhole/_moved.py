"""Which import paths and attributes have changed? Old ones work for one release, with a warning that names the new one.

Each old module is an alias that holds nothing: a name is looked up in its new home when it is asked for, with a
FutureWarning. Aliases stand in `sys.modules`, which Python asks first, so that they work where a package has become
a module, too. Old attributes are looked up by a class's `__getattr__`, which Python calls only for names it has not.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

MOVED: Mapping[str, str] = {
    "keyhole.bridges": "keyhole.features.sae",
    "keyhole.comparison": "keyhole.studies.comparison",
    "keyhole.comparison.compare": "keyhole.studies.comparison.compare",
    "keyhole.comparison.published": "keyhole.studies.comparison.unified",
    "keyhole.contrast": "keyhole.features.contrast",
    "keyhole.contrast.data.sites": "keyhole.features.contrast.sites",
    "keyhole.discover": "keyhole.features.discovery",
    "keyhole.faithful": "keyhole.studies.curves",
    "keyhole.faithful.attribution": "keyhole.studies.curves.cohort",
    "keyhole.faithful.curves": "keyhole.studies.curves.curves",
    "keyhole.faithful.edge_scores": "keyhole.studies.curves.scores",
    "keyhole.faithful.settings": "keyhole.studies.curves.settings",
    "keyhole.faithful.splits": "keyhole.studies.curves.splits",
    "keyhole.family": "keyhole.studies.families",
    "keyhole.family.families": "keyhole.studies.families.families",
    "keyhole.features.contrast.files": "keyhole.features.contrast.sites",
    "keyhole.features.contrast.ranks": "keyhole.features.contrast.study_figures",
    "keyhole.lab.heads": "keyhole.lab",
    "keyhole.lab.heads.basis": "keyhole.lab.basis",
    "keyhole.lab.heads.sparse": "keyhole.lab.sparse",
    "keyhole.lab.known.machine": "keyhole.lab.known_machine",
    "keyhole.lab.known.recovery": "keyhole.lab.known",
    "keyhole.lab.known.truth": "keyhole.lab.known",
    "keyhole.lab.payload.toy": "keyhole.lab.payload",
    "keyhole.lab.svf.theorems": "keyhole.lab.svf_theorems",
    "keyhole.lab.training": "keyhole.lab",
    "keyhole.many": "keyhole.store",
    "keyhole.many.cost": "keyhole.store.pilot",
    "keyhole.many.driver": "keyhole.store.driver",
    "keyhole.models.loading.load": "keyhole.models.load",
    "keyhole.naming.named": "keyhole.naming.record",
    "keyhole.naming.where": "keyhole.naming.corpus.gather",
    "keyhole.qk.slices": "keyhole.qk.controls",
    "keyhole.shared": "keyhole.studies.directions",
    "keyhole.shared.signals": "keyhole.studies.directions.directions",
    "keyhole.sink": "keyhole.studies.sinks",
    "keyhole.sink.explore": "keyhole.studies.sinks.explore",
    "keyhole.stable": "keyhole.studies.stability",
    "keyhole.stable.stability": "keyhole.studies.stability.stability",
    "keyhole.story": "keyhole.faithfulness.story",
    "keyhole.tasks.boxes": "keyhole.tasks.things",
    "keyhole.tasks.facts": "keyhole.tasks.knowledge",
    "keyhole.tasks.greater_than": "keyhole.tasks.knowledge",
    "keyhole.tasks.induction": "keyhole.tasks.copying",
    "keyhole.tasks.ioi": "keyhole.tasks.copying",
    "keyhole.tasks.lists": "keyhole.tasks.things",
    "keyhole.tasks.prose": "keyhole.tasks.corpus",
    "keyhole.tasks.prompt_sets": "keyhole.tasks.catalogue",
    "keyhole.tasks.pronouns": "keyhole.tasks.knowledge",
    "keyhole.tracing.answers.likelihood": "keyhole.tracing.seeds",
    "keyhole.tracing.answers.linear": "keyhole.tracing.linear",
    "keyhole.tracing.answers.targets": "keyhole.tracing.answers",
    "keyhole.tracing.firings.firing": "keyhole.tracing.firing",
    "keyhole.tracing.levels": "keyhole.tracing.trace",
    "keyhole.tracing.mlps": "keyhole.tracing.mlp_causes",
    "keyhole.tracing.mlps.flow": "keyhole.tracing.mlp_directions",
    "keyhole.tracing.svt_settings": "keyhole.tracing.settings",
}  # old module -> the module that has its names now
_CONTRAST = "keyhole.features.contrast"
NAMES: Mapping[str, Mapping[str, str]] = {
    **{key: {"Firings": "keyhole.qk.firings:FiringTable"} for key in ("keyhole", "keyhole.qk", "keyhole.qk.firings")},
    "keyhole.figures": {
        **dict.fromkeys(("attribution_figure", "interaction_figure", "intervention_figure"), f"{_CONTRAST}.figures"),
        **dict.fromkeys(("JointPCA", "joint_pca", "pca_figure", "umap_figure"), f"{_CONTRAST}.clouds"),
        **dict.fromkeys(("RankCurve", "rank_figure", "rank_grid_figure", "spectrum_figure"), f"{_CONTRAST}.ranks"),
    },
    "keyhole.intervene": dict.fromkeys(
        ("Arithmetic", "Cause", "Causes", "Row", "Verification", "verify"), "keyhole.faithfulness"
    ),
    "keyhole.naming.subjects": {"random_subjects": "keyhole.naming.naming"},
    "keyhole.tracing.mlps": dict.fromkeys(("Through", "toward"), "keyhole.tracing.mlp_directions"),
}  # names that have left a package which still exists -> their module, with a colon and the new name if that changed
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Check": {"own": "plain_pass"},
    "Curves": {"own": "own_circuits", "own_told": "own_text"},
    "HeadUse": {"found": "verdict"},
    "Model": {
        "weights": "folded",
        "batches": "_batches",
        "cached": "_cached",
        "cached_of_layer": "_cached_of_layer",
        "queries_keys": "_queries_keys",
        "stamp": "_stamp",
        "steady": "_steady",
    },
    "Run": {"attention": "pattern", "layer": "attention_run", "require_fresh": "_require_fresh", "stamp": "_stamp"},
    "SinkSide": {"found": "verdict"},
    "Stays": {"told": "spread"},
}  # class -> old attribute -> new attribute; an underscore: internal from now on


class _Alias(ModuleType):
    """A module under its old name."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return getattr(import_module(MOVED[self.__name__]), name)
        if name.startswith("__"):
            raise AttributeError(name)
        home = NAMES.get(self.__name__, {}).get(name, MOVED[self.__name__])
        return _moved(self.__name__, home, name)


def install() -> None:
    """Old modules can be imported from now on."""
    for old in MOVED:
        sys.modules.setdefault(old, _Alias(old))


def alias(old: str) -> ModuleType:
    """An old module, for those who ask the package for it."""
    return sys.modules[old]


def names_of(package: str) -> Callable[[str], Any]:
    """A package's `__getattr__` for the names that have left it."""

    def left(name: str) -> Any:
        if name not in NAMES[package]:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return _moved(package, NAMES[package][name], name)

    return left


def attributes_of(owner: str) -> Callable[[Any, str], Any]:
    """A class's `__getattr__` for the attributes that have other names now."""

    def renamed(self: Any, name: str) -> Any:
        new = ATTRIBUTES[owner].get(name)
        if new is None:
            raise AttributeError(f"{owner!r} object has no attribute {name!r}")
        instead = "is internal now" if new.startswith("_") else f"is {owner}.{new} now"
        warnings.warn(
            f"{owner}.{name} {instead}; the old name goes with the next release.", FutureWarning, stacklevel=2
        )
        return getattr(self, new)

    return renamed


def _moved(old: str, home: str, name: str) -> Any:
    module, _, new = home.partition(":")
    new = new or name
    value = getattr(import_module(module), new)
    warnings.warn(
        f"{old}.{name} is {module}.{new} now; the old path goes with the next release.", FutureWarning, stacklevel=3
    )
    return value
