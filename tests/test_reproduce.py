"""Published items: the catalogue is complete, runs survive stops and failures, and reports stand alone."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keyhole import KeyholeError
from keyhole.cli.lab import reproduce as command
from keyhole.lab.catalogue import CATALOGUE, PAPERS
from keyhole.lab.contrast_studies import named, verdict
from keyhole.lab.job import Experiment, Job, MissingModelError, load_model
from keyhole.lab.outcome import Outcome
from keyhole.lab.payload import PayloadSettings
from keyhole.lab.payload_store import trained_heads
from keyhole.lab.report import to_html, to_markdown, write_report
from keyhole.lab.reproduce import experiments, reproduce, resolve
from keyhole.lab.results import Result, read_results, write_results

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


def counting(calls: list[str], **changes: object) -> Experiment:
    def run(job: Job) -> Outcome:
        calls.append(job.folder.name)
        (job.folder / "a.png").write_bytes(PIXEL)
        return Outcome("reproduced", "All of 3 | 3 <b>heads</b>.", {"x": [1.0, float("nan")]}, (job.folder / "a.png",))

    return run


def broken(job: Job) -> Outcome:
    raise ZeroDivisionError("by zero")


# -- catalogue -----------------------------------------------------------------------------------------------------


def test_every_figure_is_in_the_catalogue() -> None:
    for paper, numbers in FIGURES.items():
        found = {int(m[1]) for id in CATALOGUE if (m := re.match(rf"{paper}-fig(\d+)", id))}
        assert found == set(numbers)
    assert {"svf-table1", "svf-table2", "cc-table1", *(f"svf-thm{n}" for n in range(1, 5))} <= set(CATALOGUE)
    talk = [int(id.removeprefix("talk-")) for id in CATALOGUE if id.startswith("talk-")]
    assert talk == list(range(1, len(talk) + 1))


def test_entries_are_whole() -> None:
    files = [__import__(f"keyhole.lab.catalogue.{paper}", fromlist=["PUBLISHED"]) for paper in PAPERS]
    assert sum(len(file.PUBLISHED) for file in files) == len(CATALOGUE)  # a repeated id would vanish
    for id, one in CATALOGUE.items():
        assert one.id == id and one.paper == id.partition("-")[0] and one.title and one.claim
        assert one.command.startswith(f"keyhole reproduce {id}")
        assert ("--model" in one.command) == (one.needs is not None)
        assert one.same_as is None or one.same_as in CATALOGUE
        assert not (one.schematic and (one.needs or one.later))


def test_experiments_are_in_the_catalogue() -> None:
    runs = experiments()
    assert set(runs) <= set(CATALOGUE)
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


def test_what_cannot_run_says_why(tmp_path: Path) -> None:
    def unreachable(job: Job) -> Outcome:
        load_model("no/such-model")
        raise AssertionError

    results = reproduce(["all"], tmp_path, runs={"cc-fig7": unreachable})
    assert len(results) == len(CATALOGUE)
    assert results["cc-fig7"].state == "needs a model" and CATALOGUE["cc-fig7"].command in results["cc-fig7"].note
    assert results["svt-fig7"].state == "needs a model" and "gpt2" in results["svt-fig7"].note
    assert results["talk-14"].state == "later" and "families" in results["talk-14"].note
    assert results["cc-fig1"].state == "schematic"
    assert results["svf-fig3"].state == "later"


def test_a_slide_takes_the_result_of_its_figure(tmp_path: Path) -> None:
    calls: list[str] = []
    results = reproduce(["svf-fig3", "talk-7"], tmp_path, runs={"svf-fig3": counting(calls)})
    assert calls == ["svf-fig3"] and results["talk-7"].state == "reproduced"
    assert results["talk-7"].figures == results["svf-fig3"].figures
    assert reproduce(["talk-7"], tmp_path / "alone", runs={"svf-fig3": counting(calls)})["talk-7"].figures


def test_a_missing_model_is_a_keyhole_error() -> None:
    with pytest.raises(MissingModelError, match="no/such-model"):
        load_model("no/such-model")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', '{"version": 7, "results": {}}'])
def test_broken_results_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(KeyholeError, match=r"results\.json"):
        read_results(tmp_path)


def test_only_the_published_model_reproduces(tmp_path: Path) -> None:
    llama = Job(tmp_path, model="/models/Llama-3.1-8B-Instruct")
    assert named(llama, "cc-fig9") and not named(llama, "cc-fig20") and not named(Job(tmp_path), "cc-fig9")
    verdicts = [verdict(job, "cc-fig9", holds) for job in (llama, Job(tmp_path)) for holds in (True, False)]
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
    results = reproduce(["all"], tmp_path, paper="cc", runs={"cc-fig2": counting([])})
    text = to_markdown(results)
    assert "| reproduced | 1 |" in text and "| drawing | 1 |" in text
    rows = [line for line in text.splitlines() if line.startswith("| cc-")]
    assert len(rows) == len(results)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    with pytest.raises(KeyholeError, match="make it first"):
        write_report(results, tmp_path, markdown=tmp_path / "no" / "table.md")


def test_lost_pictures_are_left_out(tmp_path: Path) -> None:
    results = {"cc-fig2": Result("cc-fig2", "partly", "x", figures=("cc-fig2/gone.png",))}
    write_results(results, tmp_path)
    assert "<img" not in to_html(read_results(tmp_path), tmp_path)


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
    told = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert told["cc-fig2"]["state"] == "reproduced" and told["cc-fig7"]["state"] == "partly"
    assert "organism" in told["cc-fig7"]["note"] and told["cc-fig7"]["note"].startswith("Quick run")
    for figure in told["cc-fig2"]["figures"] + told["cc-fig7"]["figures"]:
        assert (tmp_path / "out" / figure).is_file()
    assert "| cc-fig7 |" in table.read_text()


@pytest.mark.slow
def test_every_quick_run_of_the_contrast_paper(tmp_path: Path) -> None:
    results = reproduce(["all"], tmp_path, paper="cc", quick=True)
    assert {id: result.note for id, result in results.items() if result.state == "failed"} == {}
    assert all(result.figures for id, result in results.items() if id not in ("cc-fig1", "cc-table1"))


def test_the_command_lists_and_refuses() -> None:
    code, text = invoke("--list", "--paper", "svt")
    assert code == 0 and "svt-fig28" in text and "28 items" in text
    with pytest.raises(KeyholeError, match="--paper"):
        invoke("--list", "--paper", "x")
    with pytest.raises(KeyholeError, match="name the items"):
        invoke()
