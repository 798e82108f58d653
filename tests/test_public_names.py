"""What may be imported, frozen: moves keep every public name, and every path that guides and examples have used."""

import json
from importlib import import_module
from pathlib import Path

import pytest

import keyhole
from keyhole import Model
from keyhole._moved import ATTRIBUTES
from keyhole.tracing.exactness import check_run

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


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_guides_are_importable(path: str) -> None:
    """As `from module import name`, or the module itself where no name is given."""
    module, _, name = path.partition(":")
    assert not name or hasattr(import_module(module), name)
    import_module(module)


@pytest.mark.parametrize(("owner", "old"), [(owner, old) for owner, names in ATTRIBUTES.items() for old in names])
def test_old_attributes_work_and_warn(organism: Model, owner: str, old: str) -> None:
    """Bound methods are equal when object and function are."""
    run = organism.run("Mary met John")
    value = {"Model": organism, "Run": run, "Check": check_run(run)}[owner]
    with pytest.warns(FutureWarning, match=f"{owner}.{old} is "):
        assert getattr(value, old) == getattr(value, ATTRIBUTES[owner][old])
    assert old not in dir(value)


def test_other_attributes_do_not_exist(organism: Model) -> None:
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'heights'"):
        getattr(organism, "heights")  # noqa: B009
