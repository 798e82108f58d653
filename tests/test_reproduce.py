"""Published items: the catalogue is complete, runs survive stops and failures, and reports stand alone."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from typer.testing import CliRunner

from attempts import broken, training
from conftest import ROOT
from keyhole import KeyholeError
from keyhole.errors import MissingModelError
from keyhole.lab import payload as payload_store
from keyhole.lab.payload import PayloadSettings, trained_heads
from keyhole.lab.stored import gathered, store, stored
from keyhole.models.load import load
from keyhole_papers import runner
from keyhole_papers.catalogue import CATALOGUE, PAPERS, published, resolve
from keyhole_papers.cc import Subject, studied
from keyhole_papers.command import reproduce as command
from keyhole_papers.experiment import (
    AS_PRINTED,
    Attempt,
    Choices,
    Dtype,
    Experiment,
    Heeded,
    Job,
    loaded,
    require_heeded,
    unheeded,
)
from keyhole_papers.finding import TOY, Findings
from keyhole_papers.report import counts, items, summary, to_html, to_markdown, write_report
from keyhole_papers.results import Result, read_results, write_results
from keyhole_papers.runner import Task, experiments, reproduce

FIGURES = {"svf": range(1, 21), "svt": range(1, 29), "cc": range(1, 21)}
VOID = {"meta", "br", "img", "link", "input", "hr"}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001"
    "a5f645400000000049454e44ae426082"
)


class Balanced(HTMLParser):
    """Every tag is closed in order; remembers what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "srcset", "data", "poster")]
        self.fetched += [value or "" for name, value in attrs if name == "href" and not (value or "").startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def counting(calls: list[str], state: Any = "reproduced", picture: bytes = PIXEL) -> Attempt:
    def run(job: Job) -> Result:
        calls.append(job.folder.name.partition(".")[0])
        (job.folder / "a.png").write_bytes(picture)
        return Result("", state, "All of 3 | 3 <b>heads</b>.", {"x": [1.0, float("nan")]}, ("a.png",))

    return run


def unreachable(job: Job) -> Result:
    raise MissingModelError(f"cannot load {job.model}.")


# -- catalogue -----------------------------------------------------------------------------------------------------


def test_every_figure_is_in_the_catalogue() -> None:
    for paper, numbers in FIGURES.items():
        found = {int(m[1]) for id in CATALOGUE if (m := re.match(rf"{paper}-fig(\d+)", id))}
        assert found == set(numbers)
    assert {"svf-table1", "svf-table2", "cc-table1", *(f"svf-thm{n}" for n in range(1, 5))} <= set(CATALOGUE)
    talk = [int(id.removeprefix("talk-")) for id in CATALOGUE if id.startswith("talk-")]
    assert talk == list(range(1, len(talk) + 1))


def test_entries_are_whole() -> None:
    assert sum(len(published(paper)) for paper in PAPERS) == len(CATALOGUE)  # a repeated id would vanish
    for id, one in CATALOGUE.items():
        assert one.id == id and one.paper == id.partition("-")[0] and one.title and one.claim
        assert one.command.startswith(f"keyhole reproduce {id}")
        assert ("--model" in one.command) == (one.needs is not None)
        assert one.same_as is None or one.same_as in CATALOGUE
        assert not (one.schematic and (one.needs or one.later))


def test_experiments_are_in_the_catalogue() -> None:
    runs = experiments()
    assert set(runs) <= set(CATALOGUE)
    for id, run in runs.items():
        measure = getattr(run, "measure", run)
        place = getattr(measure, "func", measure).__module__
        assert f"{place}.".startswith(f"keyhole_papers.{CATALOGUE[id].paper}."), f"{id} stands in {place}"
    wanted = {id for id, one in CATALOGUE.items() if one.paper == "cc" and not one.schematic}
    assert wanted <= set(runs)


def test_ids_are_resolved_in_order() -> None:
    assert resolve(["cc-fig4", "cc-fig2"]) == ["cc-fig2", "cc-fig4"]
    assert resolve(["all"]) == list(CATALOGUE)
    assert {CATALOGUE[id].paper for id in resolve(["all"], "talk")} == {"talk"}


@pytest.mark.parametrize(
    ("wrong", "near"), [("cc-fig44", "cc-fig4"), ("svf-fig2", "svf-fig2a"), ("nonsense", "--list")]
)
def test_unknown_ids_are_refused_with_a_hint(wrong: str, near: str) -> None:
    with pytest.raises(KeyholeError, match=re.escape(wrong)) as told:
        resolve([wrong])
    assert near in str(told.value)


# -- running -------------------------------------------------------------------------------------------------------


def test_a_restart_skips_what_is_finished(tmp_path: Path) -> None:
    calls: list[str] = []
    runs = {"cc-fig2": counting(calls), "cc-fig4": counting(calls)}
    reproduce(["cc-fig2"], tmp_path, runs=runs)
    again = reproduce(["cc-fig2", "cc-fig4"], tmp_path, runs=runs, model="other")  # a toy does not depend on the model
    assert calls == ["cc-fig2", "cc-fig4"]
    assert again["cc-fig2"].numbers == {"x": [1.0, None]}
    reproduce(["cc-fig2"], tmp_path, runs=runs, seed=1)
    reproduce(["cc-fig2"], tmp_path, runs=runs, seed=1, fresh=True)
    assert calls == ["cc-fig2", "cc-fig4", "cc-fig2", "cc-fig2"]
    assert not list(tmp_path.glob("*.part"))


def test_a_failure_is_recorded_and_tried_again(tmp_path: Path) -> None:
    calls: list[str] = []
    results = reproduce(["cc-fig2", "cc-fig4"], tmp_path, runs={"cc-fig2": broken, "cc-fig4": counting(calls)})
    assert results["cc-fig2"].state == "failed" and "ZeroDivisionError: by zero" in results["cc-fig2"].note
    assert results["cc-fig4"].state == "reproduced"
    assert reproduce(["cc-fig2"], tmp_path, runs={"cc-fig2": counting(calls)})["cc-fig2"].state == "reproduced"


def test_what_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "talk-20", replace(CATALOGUE["talk-20"], later="needs names of signals"))

    def loading(job: Job) -> Result:
        load("no/such-model")
        raise AssertionError

    results = reproduce(["all"], tmp_path, runs={"cc-fig7": loading})
    assert len(results) == len(CATALOGUE)
    assert results["cc-fig7"].state == "needs a model" and CATALOGUE["cc-fig7"].command in results["cc-fig7"].note
    assert results["svt-fig7"].state == "needs a model" and "gpt2" in results["svt-fig7"].note
    assert results["talk-14"].state == "needs a model" and "gpt2" in results["talk-14"].note
    assert results["talk-20"].state == "later" and "names of signals" in results["talk-20"].note
    assert results["cc-fig1"].state == "schematic"
    assert results["svf-fig3"].state == "later"


def test_a_slide_takes_the_result_of_its_figure(tmp_path: Path) -> None:
    calls: list[str] = []
    results = reproduce(["svf-fig3", "talk-7"], tmp_path, runs={"svf-fig3": counting(calls)})
    assert calls == ["svf-fig3"] and results["talk-7"].state == "reproduced"
    assert results["talk-7"].figures == results["svf-fig3"].figures
    assert reproduce(["talk-7"], tmp_path / "alone", runs={"svf-fig3": counting(calls)})["talk-7"].figures


def test_a_slide_follows_its_figure(tmp_path: Path) -> None:
    calls: list[str] = []
    reproduce(["svf-fig3", "talk-7"], tmp_path, runs={"svf-fig3": counting(calls)})
    both = reproduce(["svf-fig3", "talk-7"], tmp_path, runs={"svf-fig3": counting(calls, "not")}, fresh=True)
    assert calls == ["svf-fig3"] * 2 and {result.state for result in both.values()} == {"not"}
    reproduce(["svf-fig3"], tmp_path, runs={"svf-fig3": counting(calls, "partly")}, seed=1)
    row = next(line for line in to_markdown(read_results(tmp_path)).splitlines() if line.startswith("| `talk-7` "))
    assert "| partly: that of svf-fig3, not counted again |" in row


def test_a_missing_model_is_a_keyhole_error() -> None:
    with pytest.raises(MissingModelError, match="no/such-model"):
        load("no/such-model")


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": 7, "results": {}}',
        b'{"version": "1", "results": {}}',
        b'{"version": true, "results": {}}',
        b'{"version": 1, "results": {"cc-fig2": null}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "splendid"}}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "not", "measured": null}}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "not", "seconds": "3"}}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "not", "seconds": NaN}}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "not", "figures": [3]}}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "not", "figures": ["../a.png"]}}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "not", "settings": {"model": 3}}}}',
        b'{"version": 1, "results": {"cc-fig2": {"state": "not", "colour": "red"}}}',
    ],
)
def test_broken_results_are_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "results.json").write_bytes(text)
    with pytest.raises(KeyholeError, match=r"results\.json.*choose another folder") as told:
        reproduce(["cc-fig2"], tmp_path, runs={})
    assert "\n" not in str(told.value) and (tmp_path / "results.json").read_bytes() == text


def test_results_that_are_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").mkdir()
    with pytest.raises(KeyholeError, match=r"results\.json"):
        reproduce(["cc-fig2"], tmp_path, runs={"cc-fig2": counting([])})


# -- what is kept --------------------------------------------------------------------------------------------------


def test_quick_trials_replace_nothing(tmp_path: Path) -> None:
    runs = {"cc-fig2": counting([])}
    full = reproduce(["cc-fig2"], tmp_path, runs=runs)["cc-fig2"]
    trial = reproduce(["cc-fig2"], tmp_path, runs={"cc-fig2": counting([], picture=b"x")}, quick=True)["cc-fig2"]
    assert (full.state, trial.state) == ("reproduced", "quick")
    assert (tmp_path / full.figures[0]).read_bytes() == PIXEL != (tmp_path / trial.figures[0]).read_bytes()
    assert "| reproduced | 1 |" in to_markdown(read_results(tmp_path))
    calls: list[str] = []
    reproduce(["cc-fig2"], tmp_path, runs={"cc-fig2": counting(calls)})
    reproduce(["cc-fig2"], tmp_path, runs={"cc-fig2": counting(calls)}, quick=True)
    assert calls == []


def test_quick_trials_have_no_verdict(tmp_path: Path) -> None:
    reproduce(["cc-fig2", "cc-fig4"], tmp_path, runs={"cc-fig2": counting([])}, quick=True)
    reproduce(["cc-fig5"], tmp_path, runs={"cc-fig5": counting([])})
    table, page = to_markdown(read_results(tmp_path)), to_html(read_results(tmp_path), tmp_path)
    for text in (table, page):
        assert "1 reproduced, 1 quick trial without a verdict" in text
        assert "a trial of the machinery, no verdict" in text
    assert "| reproduced | 1 |" in table and page.count('data-state="quick"') == 1
    stored = json.loads((tmp_path / "results.json").read_text())
    stored["results"]["cc-fig2"] = {**stored["results"].pop("cc-fig2 --quick"), "state": "reproduced"}
    (tmp_path / "results.json").write_text(json.dumps(stored))  # as it was called once
    assert to_markdown(read_results(tmp_path)) == table


def test_a_failure_does_not_replace_a_finished_result(tmp_path: Path) -> None:
    before = reproduce(["cc-fig2"], tmp_path, runs={"cc-fig2": counting([])})["cc-fig2"]
    after = reproduce(["cc-fig2"], tmp_path, runs={"cc-fig2": broken}, fresh=True)["cc-fig2"]
    assert after.state == "failed" and "by zero" in after.note and "kept" in after.note
    assert read_results(tmp_path)["cc-fig2"] == before and (tmp_path / before.figures[0]).read_bytes() == PIXEL
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["cc-fig2"]


def test_models_do_not_replace_each_other(tmp_path: Path) -> None:
    real = "meta-llama/Llama-3.1-8B-Instruct"
    reproduce(["cc-fig9"], tmp_path, runs={"cc-fig9": counting([])}, model=real)
    reproduce(["cc-fig9"], tmp_path, runs={"cc-fig9": counting([], "needs a model", b"x")})
    reproduce(["cc-fig9"], tmp_path, runs={"cc-fig9": counting([], "partly", b"y")}, model="gpt2")
    reproduce(["cc-fig9"], tmp_path, runs={"cc-fig9": unreachable}, model="an/other")
    kept = read_results(tmp_path)
    pictures = {(tmp_path / result.figures[0]).read_bytes() for result in kept.values() if result.finished}
    assert len(kept) == 4 and pictures == {PIXEL, b"x", b"y"}
    table, page = to_markdown(kept), to_html(kept, tmp_path)
    assert all("1 of" in text and "1 reproduced." in text and "an/other" not in text for text in (table, page))
    assert "With gpt2: partly." in page and "With the stand-in: not on a stand-in." in page
    assert table.rstrip().endswith(f"| {real}, gpt2, the organism |") or table.rstrip().endswith(
        f"| {real}, the organism, gpt2 |"
    )
    calls: list[str] = []
    reproduce(["cc-fig9"], tmp_path, runs={"cc-fig9": counting(calls)}, model=real)
    assert calls == []


def test_ways_of_running_do_not_replace_each_other(tmp_path: Path) -> None:
    """Each dtype, printed settings and so on have a result and pictures; who does not heed one keeps its own."""
    heard: list[Job] = []

    def heeding(state: Any, picture: bytes, heeds: frozenset[Heeded]) -> Attempt:
        def measure(job: Job) -> bytes:
            heard.append(job)
            return picture

        class Tried(Experiment[bytes]):
            def result(self, record: bytes, folder: Path) -> Result:
                (folder / "a.png").write_bytes(record)
                return Result("", state, "x", {"x": 1.0}, ("a.png",))

        return Tried(measure, lambda record: Findings((), TOY), heeds=heeds)

    ids = ["cc-fig2", "cc-fig9"]
    half, printed = Choices(dtype="float16"), Choices(dtype="bfloat16", as_printed=True)
    for number, (choices, state) in enumerate([(Choices(), "partly"), (half, "not"), (printed, "partly")]):
        runs = {
            "cc-fig2": heeding(state, b"a%d" % number, AS_PRINTED),
            "cc-fig9": heeding(state, b"b%d" % number, frozenset()),
        }
        results = reproduce(ids, tmp_path, runs=runs, choices=choices)
    kept = read_results(tmp_path)
    keys = {"cc-fig2", "cc-fig2 --as-printed", "cc-fig9", "cc-fig9 --dtype float16", "cc-fig9 --dtype bfloat16"}
    assert set(kept) == keys and kept["cc-fig9 --dtype float16"].settings["dtype"] == "float16"
    assert "dtype" not in kept["cc-fig9"].settings and "dtype" not in kept["cc-fig2 --as-printed"].settings
    pictures = {key: (tmp_path / one.figures[0]).read_bytes() for key, one in kept.items()}
    assert pictures["cc-fig2"] == b"a0" and pictures["cc-fig2 --as-printed"] == b"a2"
    assert len(set(pictures.values())) == 5
    usual, printed = ("float32", False), ("float32", True)
    ways = [(job.dtype, job.as_printed) for job in heard]
    assert ways == [usual, usual, ("float16", False), printed, ("bfloat16", False)]  # cc-fig2 reads no model
    assert results["cc-fig9"] == kept["cc-fig9 --dtype bfloat16"]
    table, page = to_markdown(kept), to_html(kept, tmp_path)
    assert "With the stand-in: partly." in page and "With the stand-in (--dtype bfloat16): partly." in page
    assert "| the organism (--dtype float16), the organism, the organism (--dtype bfloat16) |" in table
    assert "| toys (--as-printed), toys |" in table
    unknown = {"version": 1, "results": {"cc-fig9": {"state": "not", "settings": {"dtype": 3}}}}
    (tmp_path / "results.json").write_text(json.dumps(unknown))
    with pytest.raises(KeyholeError, match="settings of cc-fig9 cannot be"):
        read_results(tmp_path)


def test_another_models_contrary_result_is_told(tmp_path: Path) -> None:
    def nothing(job: Job) -> Result:
        return Result("", "needs a model", "No head of the stand-in has two edges.")

    runs = {"cc-fig8": counting([], "needs a model"), "cc-fig9": unreachable, "cc-fig10": nothing}
    reproduce([*runs], tmp_path, runs=runs)
    for text in (to_markdown(read_results(tmp_path)), to_html(read_results(tmp_path), tmp_path)):
        assert "1 not on a stand-in, 2 need a model" in text
        assert f"another model, which does not show it; a verdict needs {CATALOGUE['cc-fig8'].needs}" in text


def test_runs_at_the_same_time_keep_each_others_results(tmp_path: Path) -> None:
    def meanwhile(job: Job) -> Result:
        reproduce(["cc-fig4"], tmp_path, runs={"cc-fig4": counting([])})
        return counting([])(job)

    reproduce(["cc-fig2", "cc-fig5"], tmp_path, runs={"cc-fig2": meanwhile, "cc-fig5": counting([])})
    assert set(read_results(tmp_path)) == {"cc-fig2", "cc-fig4", "cc-fig5"}


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from keyhole_papers.results import Result, keep_result\n"
        "for n in range(20): keep_result(Result(f'{sys.argv[2]}-{n}', 'not', 'x'), Path(sys.argv[1]))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait(300) for writer in writers] == [0, 0, 0]
    assert len(read_results(tmp_path)) == 60 and not list(tmp_path.glob("*.part"))


def test_what_cannot_be_kept_is_a_failure(tmp_path: Path) -> None:
    def tensor(job: Job) -> Result:
        numbers: dict[str, Any] = {}
        outcome = Result("", "reproduced", "x", numbers)
        numbers["x"] = torch.ones(2)  # later, because types are checked in tests
        return outcome

    def unwritable(job: Job) -> Result:
        return Result("", "reproduced", "half a pair: \ud83d")

    def outside(job: Job) -> Result:
        return Result("", "reproduced", "x", {}, (__file__,))

    runs = {"cc-fig2": tensor, "cc-fig3": outside, "cc-fig4": unwritable, "cc-fig5": counting([])}
    results = reproduce([*runs], tmp_path, runs=runs)
    assert [result.state for result in results.values()] == ["failed", "failed", "failed", "reproduced"]
    assert "Tensor" in results["cc-fig2"].note and "outside its folder" in results["cc-fig3"].note


def test_fresh_trains_again(tmp_path: Path) -> None:
    cell = PayloadSettings(2, 2, 4, max_steps=3, batch=8)
    trained: list[str] = []

    def training(job: Job) -> Result:
        trained_heads([cell], job.folder.parent / "heads", lambda done, total: trained.append(job.folder.name[:7]))
        return Result("", "reproduced", "x")

    runs = {"cc-fig2": training, "cc-fig4": training}
    reproduce([*runs], tmp_path, runs=runs)
    assert set(trained) == {"cc-fig2"}
    (file,) = (tmp_path / "heads").glob("*.safetensors")
    before = file.stat().st_ino
    trained.clear()
    reproduce([*runs], tmp_path, runs=runs, fresh=True)
    assert set(trained) == {"cc-fig2"}  # once for both
    assert [*(tmp_path / "heads").glob("*.safetensors")] == [file] and file.stat().st_ino != before
    assert not list(tmp_path.glob(".fresh*"))


def test_a_model_is_loaded_once_for_all_experiments() -> None:
    model = loaded(None, None, "float32")
    assert loaded(None, None, "float32") is model and loaded(None, "cpu", "float32") is not model


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_an_items_model_computes_in_the_dtype_that_is_chosen(tmp_path: Path, dtype: Dtype) -> None:
    (result,) = reproduce(["svf-fig8a"], tmp_path, quick=True, choices=Choices(dtype=dtype)).values()
    assert result.state == "quick" and result.settings["dtype"] == dtype
    job = Job(tmp_path, quick=True, dtype=dtype)
    assert loaded(None, None, dtype).hf.dtype == getattr(torch, dtype)
    assert studied(job, "lists").test.model.hf.dtype == getattr(torch, dtype)


def test_only_the_published_model_reproduces() -> None:
    def about(id: str, model: str | None) -> Subject:
        return Subject(id, model, "a model", (), True, {})

    llama, organism = about("cc-fig9", "/models/Llama-3.1-8B-Instruct"), about("cc-fig9", None)
    assert llama.published and not about("cc-fig20", llama.source).published and not organism.published
    verdicts = [one.verdict(holds) for one in (llama, organism) for holds in (True, False)]
    assert verdicts == ["reproduced", "not", "partly", "needs a model"]


def test_trained_heads_are_kept(tmp_path: Path) -> None:
    cells = [PayloadSettings(2, 2, d_head, max_steps=3, batch=8) for d_head in (4, 8)]
    steps: list[int] = []
    first = trained_heads(cells, tmp_path, lambda done, total: steps.append(done))
    again = trained_heads([*cells[::-1]], tmp_path, lambda done, total: pytest.fail("trained again"))
    assert [head.settings for head in again] == cells[::-1] and steps
    for one, other in zip(first, again[::-1], strict=True):
        assert one.accuracy == other.accuracy and bool((one.W_Q == other.W_Q).all())
        assert bool((one.maps.A == other.maps.A).all())


def test_heads_of_another_recipe_or_damaged_ones_are_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = PayloadSettings(2, 2, 4, max_steps=3, batch=8)
    steps: list[int] = []

    def trained() -> bool:
        steps.clear()
        assert trained_heads([cell], tmp_path, lambda done, total: steps.append(done))[0].settings == cell
        return bool(steps)

    assert trained() and not trained()
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    for damaged in (whole[:-100], b"", b"text"):
        file.write_bytes(damaged)
        assert trained() and not trained()
    weights, numbers = stored(file, payload_store.HEADS.about(cell))
    missing = {name: tensor for name, tensor in weights.items() if name != "W_O"}
    for foreign in ({**weights, "W_Q": torch.ones(1)}, {**weights, "W": torch.ones(1)}, missing):
        store(file, foreign, payload_store.HEADS.about(cell), **numbers)
        assert trained() and not trained()
    store(file, weights, "other settings", **numbers)
    assert trained() and not trained()
    monkeypatch.setattr(payload_store, "HEADS", replace(payload_store.HEADS, recipe=2))
    assert trained() and not trained()


# -- reports -------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    results = reproduce(["all"], tmp_path, runs={"cc-fig2": counting([]), "cc-fig4": broken})
    path = write_report(results, tmp_path)[0]
    page = Balanced()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    assert len(page.fetched) == 1 and page.fetched[0].startswith("data:image/png;base64,")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(", text)
    assert "3 | 3 &lt;b&gt;heads&lt;/b&gt;" in text
    for id, one in CATALOGUE.items():
        assert f'id="{id}"' in text and (one.schematic or one.command in text)


def test_the_table_counts_and_escapes(tmp_path: Path) -> None:
    results = reproduce(resolve("all", "cc"), tmp_path, runs={"cc-fig2": counting([])})
    text = to_markdown(results)
    assert "| reproduced | 1 |" in text and "| drawing | 1 |" in text
    rows = [line for line in text.splitlines() if line.startswith("| `cc-")]
    assert len(rows) == len(results)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    with pytest.raises(KeyholeError, match="make it first"):
        write_report(results, tmp_path, markdown=tmp_path / "no" / "table.md")


def test_lost_pictures_are_left_out(tmp_path: Path) -> None:
    results = {"cc-fig2": Result("cc-fig2", "partly", "x", figures=("cc-fig2/gone.png",))}
    write_results(results, tmp_path)
    assert "<img" not in to_html(read_results(tmp_path), tmp_path)


def test_only_what_is_in_the_catalogue_is_counted(tmp_path: Path) -> None:
    one = Result("cc-fig2", "partly", "x", seconds=60.0)
    text = to_markdown({"cc-fig2": one, "cc-fig99": Result("cc-fig99", "reproduced", "x", seconds=600.0)})
    counted = [one for one in CATALOGUE.values() if one.counts]
    assert f"1 of {len(counted)} published figures, tables and theorems: 1 partly." in text


def test_time_is_counted_once(tmp_path: Path) -> None:
    results = {id: Result(id, "partly", "x", seconds=60.0) for id in ("svf-fig3", "talk-7")}
    assert "1.0 minutes, without the training of heads and models that earlier runs had left" in to_markdown(results)


# -- totals --------------------------------------------------------------------------------------------------------


def test_slides_and_what_goes_beyond_are_not_counted() -> None:
    ids = ("svf-fig2a", "talk-4", "cc-phase", "svf-thm3", "svf-fig6b", "cc-fig1")
    results = {id: Result(id, "reproduced", "x") for id in ids[:4]}
    results |= {"svf-fig6b": Result("svf-fig6b", "partly", "x"), "cc-fig1": Result("cc-fig1", "schematic")}
    shown = items(results)
    assert {first.id for first, *_ in shown} >= set(ids)
    assert counts(shown) == {"reproduced": 2, "partly": 1, "schematic": 1}
    assert counts(shown, "toys") == {"reproduced": 2, "partly": 0, "schematic": 0}
    assert counts(shown, "language") == {"reproduced": 0, "partly": 1, "schematic": 0}
    told = summary(shown)
    assert "2 reproduced, 1 partly, 1 drawing. About toys and theorems: 2 reproduced." in told
    assert "About language models: 1 partly." in told
    assert "Not counted: 1 slide that shows a figure again and 1 beyond the papers." in told
    for text in (to_markdown(results), to_html(results, Path())):
        assert told in text and "that of svf-fig2a, not counted again" in text and "beyond the paper" in text
    assert "| reproduced | 2 | 2 | 0 |" in to_markdown(results)


def test_every_item_is_counted_once() -> None:
    counted = [one for one in CATALOGUE.values() if one.counts]
    assert len({one.same_as or one.id for one in CATALOGUE.values()}) == len(counted) + 1  # and cc-phase, which is ours
    assert not [one.id for one in counted if one.figure == "Beyond the paper"]


# -- several processes and machines --------------------------------------------------------------------------------


def test_items_run_in_several_processes(tmp_path: Path) -> None:
    runs = {"cc-fig2": training, "cc-fig4": training, "cc-fig3": broken}
    results = reproduce([*runs], tmp_path, runs=runs, jobs=2)
    assert [results[id].state for id in runs] == ["reproduced", "reproduced", "failed"]
    assert read_results(tmp_path) == {id: results[id] for id in resolve([*runs])}
    assert f"process {os.getpid()}" not in {one.measured for one in results.values()}
    own = [results[id].numbers for id in ("cc-fig2", "cc-fig4")]
    assert sum(one["trained"] for one in own) == 1, "the head that both need was trained once"
    assert {one["threads"] for one in own} == {1}
    with pytest.raises(KeyholeError, match="0 jobs"):
        reproduce(["cc-fig2"], tmp_path, runs=runs, jobs=0)


def test_what_shares_a_model_stays_together(tmp_path: Path) -> None:
    def family(id: str, run: Attempt) -> str:
        return Task(CATALOGUE[id], Job(tmp_path), {}, tmp_path, run).family

    assert family("svt-fig1", broken) == family("svt-fig2", partial(broken)) == broken.__module__
    assert family("cc-fig2", broken) == "cc-fig2", "toys lie on disk"


def test_only_one_trains_and_the_others_wait(tmp_path: Path) -> None:
    """Two threads want overlapping models; a third file is given up by the one that began it."""
    kept: dict[str, str] = {}
    trained: list[str] = []

    def train(keys: list[str]) -> dict[str, str]:
        trained.extend(keys)
        time.sleep(0.05)
        kept.update({key: key for key in keys})
        return {key: key for key in keys}

    def want(keys: str) -> dict[str, str]:
        return gathered({key: tmp_path / key for key in keys}, kept.get, train)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(want, ("ab", "bc", "ca")))
    assert sorted(trained) == ["a", "b", "c"]
    assert found == [{key: key for key in keys} for keys in ("ab", "bc", "ca")]


def test_results_of_other_machines_are_merged(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    reproduce(["cc-fig2", "cc-fig4"], here, runs={"cc-fig2": counting([]), "cc-fig4": counting([])})
    reproduce(["cc-fig2", "cc-fig5"], there, runs={"cc-fig2": counting([], "not", b"new"), "cc-fig5": counting([])})
    reproduce(["cc-fig4"], there, runs={"cc-fig4": broken})
    told = json.loads((there / "results.json").read_text())
    told["results"]["cc-fig2"]["when"] = "2999-01-01T00:00:00Z"
    (there / "results.json").write_text(json.dumps(told))
    code, text = invoke("--out", str(here), "--merge", str(there))
    found = read_results(here)
    assert code == 0 and "1 not reproduced" in text
    assert {id: one.state for id, one in found.items()} == {
        "cc-fig2": "not", "cc-fig4": "reproduced", "cc-fig5": "reproduced"
    }  # fmt: skip
    assert (here / found["cc-fig2"].figures[0]).read_bytes() == b"new"
    assert (here / found["cc-fig5"].figures[0]).read_bytes() == PIXEL
    invoke("--out", str(there), "--merge", str(here / "results.json"))
    assert read_results(there) == found
    with pytest.raises(KeyholeError, match="no results in"):
        invoke("--out", str(here), "--merge", str(tmp_path / "nowhere"))


def test_a_table_keeps_its_results_beside_it(tmp_path: Path) -> None:
    table, model = tmp_path / "table.md", str(tmp_path / "m.gguf")
    Path(model).touch()
    reproduce(["cc-fig2", "svt-fig3"], tmp_path / "a", runs={"cc-fig2": counting([]), "svt-fig3": counting([])})
    write_report(read_results(tmp_path / "a"), tmp_path / "a", markdown=table)
    reproduce(["svt-fig3"], tmp_path / "b", runs={"svt-fig3": counting([], "partly")}, model=model)
    write_report(read_results(tmp_path / "b"), tmp_path / "b", markdown=table)
    kept = read_results(table.with_suffix(".json"))
    assert set(kept) == {"cc-fig2", "svt-fig3", "svt-fig3 --model m.gguf"}, "no path of this machine"
    assert not any(one.figures for one in kept.values())
    assert table.read_text() == to_markdown(kept) and "| `cc-fig2` |" in table.read_text()
    table.with_suffix(".json").write_text("{}")
    with pytest.raises(KeyholeError, match="is no file of results"):
        write_report(kept, tmp_path / "a", markdown=table)


# -- the docs ------------------------------------------------------------------------------------------------------


def test_the_docs_say_what_the_published_results_say() -> None:
    spec = importlib.util.spec_from_file_location("publish", ROOT / "tools" / "publish.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    kept = read_results(ROOT / "docs" / "reproduction.json")
    assert {"svf-thm3", "svf-thm4"} <= set(kept) and not any(one.figures for one in kept.values())
    page = (ROOT / "docs" / "laboratory.md").read_text(encoding="utf-8")
    assert page.count("<!-- quote ") == page.count("<!-- end -->") > 20
    assert tool.quoted(page, kept) == page, "run tools/publish.py"
    table = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert table == to_markdown(kept), "run tools/publish.py"


# -- end to end ----------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> tuple[int, str]:
    import typer

    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, list(arguments))
    if isinstance(done.exception, KeyholeError):
        raise done.exception
    return done.exit_code, done.output


def test_quick_runs_end_to_end(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    code, text = invoke("cc-fig2", "cc-fig7", "--quick", "--out", str(tmp_path / "out"), "--markdown", str(table))
    assert code == 0 and "report.html" in text
    assert text.count("no verdict") == 2 and not re.search("reproduced|partly", text)
    told = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    two = [told["cc-fig2 --quick"], told["cc-fig7 --quick"]]
    assert [one["state"] for one in two] == ["quick", "quick"]
    assert "organism" in two[1]["note"] and two[1]["note"].startswith("Quick")
    for figure in two[0]["figures"] + two[1]["figures"]:
        assert (tmp_path / "out" / figure).is_file()
    assert "| `cc-fig7` |" in table.read_text()


@pytest.mark.slow
def test_every_quick_run_of_the_contrast_paper(tmp_path: Path) -> None:
    results = reproduce(resolve("all", "cc"), tmp_path, quick=True)
    assert {id: result.note for id, result in results.items() if result.state == "failed"} == {}
    measured = {id: result for id, result in results.items() if result.numbers}
    assert len(measured) > 15 and all(result.figures for id, result in measured.items() if id != "cc-table1")


def test_the_command_lists_and_refuses() -> None:
    code, text = invoke("--list", "--paper", "svt")
    assert code == 0 and "svt-fig28" in text and "28 items" in text
    code, text = invoke("cc-fig9", "--dtype", "float8")
    assert code == 2 and "--dtype" in text and "bfloat16" in text
    with pytest.raises(KeyholeError, match="there is no dtype 'float8': choose one of float32"):
        reproduce(["cc-fig9"], "nowhere", choices=Choices(dtype="float8"))
    code, text = invoke("--list", "--paper", "x")
    assert code == 2 and "--paper" in text and "svt" in text
    with pytest.raises(KeyholeError, match="name the items"):
        invoke()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("cc-fig1", "--paper", "svf"), "none of cc-fig1 is of 'svf'"),
        (("cc-fig1", "--device", "nonsense"), "cannot compute on 'nonsense'"),
        (("cc-fig1", "--device", "meta"), "cannot compute on 'meta'"),
        (("cc-fig1", "--model", "./nowhere"), "no model at ./nowhere"),
        (("cc-fig1", "--seed", str(2**70)), "no seed"),
        (("cc-fig2", "--dtype", "float16"), "--dtype float16 changes nothing in cc-fig2: leave it out"),
        (("svf-fig3", "svt-fig2", "--as-printed"), "--as-printed changes nothing in any of svf-fig3, svt-fig2: leave"),
        (("svf-fig6b", "--revisions", "step1,step2"), "those of a --model: name one"),
        (("svf-fig6b", "--model", "a/b", "--revisions", "step1"), "at least two --revisions"),
        (("svf-fig6b", "--model", "a/b", "--revisions", "step2,step1"), "are not in order"),
        (("svf-fig6b", "--model", "a/b", "--revisions", "all"), "which checkpoints a/b has is not known"),
        (("cc-fig9", "--model", "a/b", "--revisions", "a,b"), "--revisions a,b changes nothing in cc-fig9: leave"),
        (("cc-fig1", "--out", "{file}"), "is a file, where a folder is needed"),
        (("cc-fig1", "--out", "{file}/below"), "cannot make the folder"),
        (("cc-fig1", "--markdown", "{folder}"), "is a folder"),
        (("cc-fig1", "--markdown", "{file}/table.md"), "is a file, where table.md needs a folder"),
        (("cc-fig1", "--out", "{taken}"), "is a folder"),
    ],
)
def test_refusals_come_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], reason: str
) -> None:
    file, folder, taken = tmp_path / "file", tmp_path / "folder", tmp_path / "taken"
    file.write_text("")
    folder.mkdir()
    (taken / "report.html").mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(KeyholeError, match=reason) as told:
        invoke(*(text.format(file=file, folder=folder, taken=taken) for text in arguments))
    assert "\n" not in str(told.value)
    assert not list(tmp_path.rglob("results.json"))


def test_a_choice_counts_where_an_item_heeds_it() -> None:
    toy, model = CATALOGUE["cc-fig2"], CATALOGUE["cc-fig9"]
    half, runs = Choices(dtype="float16"), experiments()
    require_heeded([toy, model], half, runs)
    assert unheeded([toy, model], half, runs) == {"dtype": ["cc-fig2"]} and unheeded([toy], Choices(), runs) == {}
    with pytest.raises(
        KeyholeError, match="--dtype float16 changes nothing in cc-fig2: leave it out, or run items that"
    ):
        require_heeded([toy], half, runs)
    slide = CATALOGUE["talk-7"]  # shows svf-fig3 again
    assert unheeded([slide, toy], Choices(as_printed=True), runs) == {"as_printed": ["talk-7"]}
    heeding = {name: {id for id, run in runs.items() if name in getattr(run, "heeds", ())} for name in get_args(Heeded)}
    assert heeding["revisions"] == {"svf-fig6b", "svf-fig7", "svf-fig8b", "svf-fig20", "svf-table2"}
    assert heeding["namers"] == {"talk-19", "talk-20", "talk-21"}
    assert heeding["as_printed"] == {id for id in runs if CATALOGUE[id].paper == "cc" and id != "cc-phase"}


def test_only_weights_that_are_not_there_are_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for source, device, reason in ((str(tmp_path), None, "cannot load"), (None, "nonsense", "device")):
        with pytest.raises(KeyholeError, match=reason) as told:
            load(source, device=device)
        assert not isinstance(told.value, MissingModelError)


def test_a_stopped_run_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(job: Job) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "experiments", lambda: {"cc-fig2": counting([]), "cc-fig4": stopped})
    code, text = invoke("cc-fig2", "cc-fig4", "--out", str(tmp_path))
    assert code != 0 and "report.html" in text
    assert 'id="cc-fig2"' in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.part"))


def test_the_terminal_tells_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "experiments", lambda: {"cc-fig2": counting([])})
    assert invoke("cc-fig2", "--out", str(tmp_path))[0] == 0
    monkeypatch.setattr(runner, "experiments", lambda: {"cc-fig2": broken})
    code, text = invoke("cc-fig2", "--out", str(tmp_path), "--fresh")
    assert code == 1 and "by zero" in text and "shows what was kept before: reproduced" in text
    monkeypatch.setattr(runner, "experiments", lambda: {"cc-fig2": counting([])})
    code, text = invoke("cc-fig2", "--out", str(tmp_path), "--quick")
    assert code == 0 and "no verdict" in text and "shows what was kept before: reproduced" in text
