"""What may be imported, frozen: moves keep every public name, and every path that guides and examples have used."""

import json
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import keyhole
from keyhole import KeyholeError, Model, Run
from keyhole._moved import ATTRIBUTES
from keyhole.settings.stores import Tracing
from keyhole.settings.tracing import TraceSettings
from keyhole.studies.curves.record import Curves
from keyhole.studies.curves.settings import CurveSettings
from keyhole.studies.directions.record import HeadUse
from keyhole.studies.sinks.record import SinkSide
from keyhole.studies.stability.stability import Stays
from keyhole.tracing import explain, trace_svt
from keyhole.tracing.exactness import check_run
from keyhole.tracing.trace import trace

GOLDENS = Path(__file__).parent / "goldens"
SURFACE: dict[str, list[str]] = json.loads((GOLDENS / "surface.json").read_text())
PATHS: list[str] = json.loads((GOLDENS / "old_paths.json").read_text())


def test_the_root_has_the_names_it_had() -> None:
    assert sorted(keyhole.__all__) == SURFACE["keyhole"]


@pytest.mark.parametrize("package", SURFACE)
def test_public_names_are_importable(package: str) -> None:
    """New ones may join them."""
    module = import_module(package)
    assert not [name for name in SURFACE[package] if not hasattr(module, name)]


def test_submodules_do_not_replace_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a function and a submodule have one name, not even when the submodule is imported anew."""
    packages = [each.name for each in walk_packages(keyhole.__path__, "keyhole.") if each.ispkg]
    both = []
    for package in (import_module(name) for name in ["keyhole", *packages]):
        public = {name: getattr(package, name) for name in getattr(package, "__all__", ())}
        for each in iter_modules(package.__path__):
            path = f"{package.__name__}.{each.name}"
            if each.name in public:
                both.append(path)
                import_module(path)
                monkeypatch.delitem(sys.modules, path)
                assert isinstance(import_module(path), ModuleType)
        assert not [name for name, value in public.items() if isinstance(value, ModuleType)], package
        assert all(getattr(package, name) is value for name, value in public.items()), package
    assert "keyhole.faithfulness.effects" in both


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_guides_are_importable(path: str) -> None:
    """As `from module import name`, or the module itself where no name is given."""
    module, _, name = path.partition(":")
    assert not name or hasattr(import_module(module), name)
    import_module(module)


@pytest.mark.parametrize(("owner", "old"), [(owner, old) for owner, names in ATTRIBUTES.items() for old in names])
def test_old_attributes_work_and_warn(organism: Model, owner: str, old: str) -> None:
    """Bound methods are equal when object and function are."""
    run, none = organism.run("Mary met John"), np.zeros((0, 0))
    value: Any = {
        "Model": organism,
        "Run": run,
        "Check": check_run(run),
        "Curves": Curves("", "", CurveSettings(), 0, (), 0, 0, none.ravel(), none.ravel(), 0.0, ()),
        "HeadUse": HeadUse(1, 2, "dest", (9, 9), 1.0, 1.0, (1.0, 1.0), 0.0, 1.0, 1.0),
        "SinkSide": SinkSide("dest", (), none, none, (), (), (), 0.0),
        "Stays": Stays("nothing", False, {"heads": ()}, {}),
    }[owner]
    with pytest.warns(FutureWarning, match=f"{owner}.{old} is "):
        assert getattr(value, old) == getattr(value, ATTRIBUTES[owner][old])
    assert old not in dir(value)


def test_other_attributes_do_not_exist(organism: Model) -> None:
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'heights'"):
        getattr(organism, "heights")  # noqa: B009


PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def run(organism: Model) -> Run:
    return organism.run(PROMPT)


@pytest.mark.parametrize("record", [TraceSettings, Tracing])
def test_old_names_of_settings_work_with_a_warning(record: type) -> None:
    """As keywords, and as attributes; what is none of them is refused as before."""
    with pytest.warns(FutureWarning, match="seeds is called metric now"):
        settings = record(seeds="linear")
    with pytest.warns(FutureWarning, match="sinks is called first_token now"):
        assert record(sinks="mark") == record(first_token="mark")
    with pytest.warns(FutureWarning, match="metric"):
        assert settings.seeds == settings.metric == "linear"
    with pytest.raises(AttributeError, match="no attribute 'seed'"):
        _ = settings.seed
    with pytest.raises(TypeError, match="sink"):
        record(sink="mark")


def test_old_keywords_of_functions_work_with_a_warning(run: Run) -> None:
    new = run.trace("Mary", metric="linear", first_token="collapse", through="heads")
    for function in (run.trace, lambda *args, **options: trace(run, *args, **options)):
        with pytest.warns(FutureWarning, match="is called"):
            assert function("Mary", seeds="linear", sinks="collapse", through="heads") == new
    with pytest.warns(FutureWarning, match="seeds is called metric now"):
        assert trace_svt(run, "Mary", seeds="linear") == trace_svt(run, "Mary", metric="linear")
    held_off = run.explain((1, 6), -1, "store", why_not=True)
    for call in (run.explain, lambda *args, **options: explain(run, *args, **options)):
        with pytest.warns(FutureWarning, match="why is called why_not now"):
            assert call((1, 6), -1, "store", why="not") == held_off
        with pytest.warns(FutureWarning), pytest.raises(KeyholeError, match="why"):
            call((1, 6), -1, "store", why="because")
    with pytest.warns(FutureWarning, match="why_not"):
        assert held_off.why == "not" == held_off.record()["why"]
