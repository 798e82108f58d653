"""Commands on stores are one product: the same options, one way to answer and write, and the same prompts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import keyhole
from keyhole.cli.app import app
from keyhole.cli.bulk import answer
from keyhole.errors import KeyholeError
from keyhole.figures.style import blank
from keyhole.report import Picture, Report, Reported, Table
from keyhole.store import Outcome
from keyhole.store.manifest import label_columns, some_prompts, spread
from keyhole.studies.curves.cohort import usable
from keyhole.studies.curves.curves import _halves
from keyhole.studies.curves.settings import CurveSettings
from keyhole.tasks import ioi
from stores import stored

COMMANDS = get_command(app).commands
ON_STORES = ("families", "compare", "curves", "stability", "shared", "sinks")


class Answer(Reported):
    """A result as small as can be."""

    def report(self) -> Report:
        return Report("told", "", [], Table(("name", ">value"), [("a", 1)]), Picture(lambda: blank(1, 1), "nothing"))

    def record(self) -> dict[str, Any]:
        return {"value": float("nan")}


def lines_of(text: str) -> list[str]:
    """The lines that are not empty."""
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("name", ["out", "json", "seed", "model", "revision", "dtype", "device"])
def test_options_are_the_same_everywhere(name: str) -> None:
    options = [{option.name: option for option in COMMANDS[command].params}.get(name) for command in ON_STORES]
    spelt = {(tuple(option.opts), option.is_flag, option.default) for option in options if option is not None}
    assert len(spelt) == 1 and options.count(None) == (name in ("model", "revision", "dtype", "device"))


def test_what_is_written_is_said_after_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [tmp_path / f"a{suffix}" for suffix in (".json", ".html", ".csv", ".png")]
    answer(Answer(), places, json=False)
    assert lines_of(capsys.readouterr().out) == ["told", *[f"wrote {path}" for path in places]]
    assert places[2].read_text() == "name,value\na,1\n" and json.loads(places[0].read_text()) == {"value": None}
    answer(Answer(), places, json=True)
    assert json.loads(capsys.readouterr().out) == {"value": None}


def test_a_file_that_cannot_be_written_costs_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [tmp_path / "gone" / "a.json", tmp_path / "b.json"]
    with pytest.raises(KeyholeError, match="gone"):
        answer(Answer(), places, json=False)
    assert lines_of(capsys.readouterr().out) == ["told", f"wrote {places[1]}"]


def test_some_prompts_are_of_all_orders(organism: keyhole.Model, tmp_path: Path) -> None:
    """A store has two prompts of one order, then two of the other: every fourth is of one order, but not these."""
    examples = ioi(60, design="balanced")
    circuit = organism.run(examples[0].text).trace(examples[0].answer, against=examples[0].against[0], through="heads")
    right: dict[str, Any] = {"correct": True, "predicted": " Mary", "probability": 0.75, "difference": 1.0}
    outcomes = [Outcome(i, one, "circuit", circuit, **right) for i, one in enumerate(examples)]
    store = stored(tmp_path / "ioi.store", outcomes, part=16)
    told = store.table("prompts", columns=["prompt", "label_order"])
    order = dict(zip(told["prompt"].to_pylist(), told["label_order"].to_pylist(), strict=True))
    assert {order[i] for i in spread(range(60), 15)} == {"ABBA"}, "the trap"
    for n in (8, 15, 30):
        chosen = some_prompts(store, n)
        assert len(set(chosen)) == n and abs(sum(order[i] == "ABBA" for i in chosen) - n / 2) <= 1
    assert label_columns(store, {"order": "ABBA", "wording": 3, "correct": True}) == {
        "label_order": "ABBA",
        "label_wording": "3",
        "correct": True,
    }
    shown, tried = _halves(usable(store), CurveSettings(prompts=15, baseline="zero"))
    assert not {*shown} & {*tried} and len(shown) == len(tried) == 15
    for half in (shown, tried):
        assert abs(sum(order[i] == "ABBA" for i in half) - len(half) / 2) <= 1


def test_likeness_is_the_same_in_every_run() -> None:
    """Sums over a set differ in their last digits from run to run, since texts are hashed by chance."""
    code = (
        "from keyhole.studies.comparison.operands import likeness;"
        "from keyhole.studies.families import Component, Term;"
        "terms = [Term(Component('head', i // 12, i % 12), side=s) for i in range(144) for s in ('dest', 'src')];"
        "print(repr([likeness({t: (3 * i + k) % 101 / 101 for i, t in enumerate(terms)},"
        " {t: (7 * i + k) % 103 / 103 for i, t in enumerate(terms)}) for k in range(9)]))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
