"""The examples run as they stand, on the organism; the notebook has tests of its own."""

import runpy
import sys
from pathlib import Path

import pytest

from conftest import ROOT

SAYS = {
    "circuit_of_a_prompt": "measured values equal the predicted ones",
    "feature_of_a_contrast": "attention moved",
    "many_prompts": "1.6 is in",
    "two_prompts": "both",
    "why_here": "without it",
}


def test_all_of_them_are_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SAYS)


@pytest.mark.parametrize(("name", "says"), SAYS.items(), ids=SAYS)
def test_an_example_runs(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert says in said, said
    if name == "circuit_of_a_prompt":
        assert {"circuit.html", "circuit.svg", "circuit.json"} <= {path.name for path in tmp_path.iterdir()}
    if name == "why_here":
        line = next(line for line in said.splitlines() if line.startswith("without it"))
        after, predicted = float(line.split("-> ")[1].split(",")[0]), float(line.split()[-1])
        assert after == pytest.approx(predicted, abs=1e-3)
