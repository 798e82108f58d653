"""The list of mutants fits the code: each applies, changes a line that can run, and names tests that exist."""

import sys
from dataclasses import replace

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from mutant_list import BadMutantError, check, read_mutants, read_source

AREAS = {"models", "qk", "tracing", "intervene", "faithfulness", "store", "features", "studies", "naming"}


def test_every_mutant_still_applies() -> None:
    mutants, texts = read_mutants(), read_source()
    assert check(mutants) == []
    assert len(mutants) >= 640 and {mutant.applied(texts)[0].split("/")[1] for mutant in mutants} >= AREAS


def test_mutants_that_do_not_fit_are_named() -> None:
    first = read_mutants()[0]
    gone, many = replace(first, old="no such line"), replace(first, old="import")
    for bad in (gone, many):
        with pytest.raises(BadMutantError, match=r"stands \d+ times"):
            bad.applied(read_source())
        assert len(check([bad])) == 1
    assert "changes nothing" in check([replace(first, new=first.old)])[0]
    assert "there is no test" in check([replace(first, tests=("test_omega.py::test_nothing",))])[0]
    assert check([replace(first, new="return return")])
