"""Notebooks: results that show themselves, widgets that ask the kernel, an example that runs; looked at in Chromium."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import keyhole
from conftest import tiny_model
from keyhole import Circuit, KeyholeError, Model
from keyhole.circuits.files import from_json
from keyhole.faithfulness.story import numbers
from keyhole.intervene.removal import AGREES
from keyhole.models.run import Run
from keyhole.studies.families import Families
from keyhole.tracing.firing import Firing
from keyhole.web.notebook import Widget
from keyhole.web.page import story_lines
from planted import planted, planted_store
from tiny import Sizes

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from notebook import NOTEBOOK, execute

pytestmark = pytest.mark.xdist_group("notebook")  # one browser
PROMPT = "When Mary and John went to the store, John gave a drink to"
EVIL = "<img src=x onerror=alert(1)></script><b>bold</b>"
CHROMIUM = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def run(organism: Model) -> Run:
    return organism.run(PROMPT)


@pytest.fixture(scope="module")
def evil(run: Run) -> Run:
    """The same run, whose tokens try to be markup."""
    return replace(run, tokens=(*run.tokens[:11], EVIL, *run.tokens[12:]))


@pytest.fixture(scope="module")
def circuit(run: Run) -> Circuit:
    return run.trace("Mary")


@pytest.fixture(scope="module")
def found(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Families:
    heads = run.trace("Mary", through="heads")
    matrix, truth = planted(2, 24, seed=3)
    labels = [{"kind": f"{EVIL}{one}"} for one in truth]
    store = planted_store(tmp_path_factory.mktemp("notebook") / "store", heads, matrix, labels)
    return keyhole.families(store, granularity="edges")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM.split())
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page that is off the network, and must have nothing to complain about."""
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page, complaints = context.new_page(), []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    page.set_content("<!doctype html><h1>a notebook</h1><button>ours</button><table><td>cell</table><main></main>")
    yield page
    assert complaints == []
    context.close()


def put(page: Page, *outputs: str) -> None:
    """As a notebook does: outputs are set as markup, whose scripts do not run."""
    page.evaluate("(all) => { for (const one of all) { const el = document.createElement('div'); el.innerHTML = one;"
                  " document.querySelector('main').append(el); } }", list(outputs))  # fmt: skip


LOOK = """() => ['h1', 'button', 'td', 'body'].map((name) => {
 const own = getComputedStyle(document.querySelector(name));
 return [own.font, own.color, own.backgroundColor, own.margin, own.padding, own.border].join(); })"""


def html_of(thing: Any) -> str:
    return str(thing._repr_html_())


def test_results_show_themselves_and_stay_small(run: Run, circuit: Circuit, found: Families) -> None:
    firing = run.explain((3, 6))
    shown = {
        name: html_of(one) for name, one in {"run": run, "channels": run.channels((3, 6)), "firing": firing}.items()
    }
    assert max(map(len, shown.values())) < 95_000 and len(shown["run"]) < 60_000
    plain = re.sub("<[^>]*>", " ", shown["run"])
    for text in (*run.tokens[1:], "Mary", "3.6 ← 11:gave", "0.891"):
        assert text.strip() in plain
    terms = re.findall(r"channel (\d+).*?([+-]\d+\.\d+)<", shown["channels"], re.DOTALL)
    assert {int(k): x for k, x in terms} == {
        k: f"{x:+.3f}" for k, x in enumerate(run.channels((3, 6)).relative_terms.tolist())
    }
    assert len(html_of(circuit)) < 300_000 + 2 * len(circuit.to_json())
    assert repr(run).startswith("<Run of organism") and repr(firing).startswith("<Firing of head 3.6")
    families, plain = html_of(found), re.sub("<[^>]*>", " ", unescape(html_of(found)))
    assert families.startswith("<iframe") and "Representatives" in plain
    assert all(re.search(rf"Families .*\b{family.representative}\b", plain, re.DOTALL) for family in found.families)


def test_long_prompts_are_cut_and_changed_weights_told(run: Run) -> None:
    long = tiny_model("llama", Sizes(positions=1000)).run([1 + i % 60 for i in range(900)])
    shown = html_of(replace(long, tokens=tuple(f"w{i}" for i in range(900))))
    assert (
        len(shown) < 90_000 and all(text in shown for text in ("w149<", "600 more", "w750<")) and "w150<" not in shown
    )
    assert "weights have changed" in html_of(replace(run, _stamp=-1))


def test_two_results_live_in_one_notebook_and_touch_nothing(page: Page, run: Run, evil: Run, found: Families) -> None:
    before = page.evaluate(LOOK)
    firing = evil.explain((3, 6))
    traced = evil.trace("Mary")
    measured = traced.verify(edges=False)
    put(
        page,
        html_of(firing),
        html_of(evil),
        html_of(run.explain((1, 6), src="Mary")),
        html_of(measured),
        html_of(traced),
    )
    put(page, html_of(evil.channels((3, 6))), html_of(found))
    page.frame_locator("iframe >> nth=3").locator("svg.circuit .mark").first.wait_for()
    first, second = (page.frame_locator(f"iframe >> nth={i}") for i in (0, 1))
    assert first.locator("h3.which").inner_text().replace("\n", "").endswith("11<img src=x onerror=aler…")
    assert second.locator("h3.which").inner_text().endswith("Mary")
    assert first.locator("[data-does]:visible, [data-action]:visible").count() == 0  # nothing that needs a kernel
    rows = [first.locator("[data-side=dest]").count(), second.locator("[data-side=dest]").count()]
    first.get_by_role("button", name="3 more").click()
    assert first.locator("[data-side=dest]").count() == rows[0] + 3
    assert second.locator("[data-side=dest]").count() == rows[1]
    heights = page.eval_on_selector_all("iframe", "(all) => all.map((one) => one.offsetHeight)")
    inside = second.locator("#keyhole").evaluate("(el) => el.getBoundingClientRect().height")
    assert heights[0] == 900 and 0 <= heights[1] - inside < 120  # as high as what is in it, up to a screen
    verified = page.frame_locator("iframe >> nth=2")
    assert (
        verified.locator("svg.scatter circle.point").count()
        == verified.locator("tbody tr[data-agrees]").count()
        == len(measured.rows)
    )
    assert page.evaluate(LOOK) == before
    for frame in page.frames:
        assert frame.locator("img[src=x], main b:text-is('bold')").count() == 0
    assert EVIL[:20] in page.locator("main").inner_text() and EVIL in page.frames[-1].locator("body").inner_text()


TELLING = """() => {
    const box = document.querySelector(".telling").getBoundingClientRect();
    const pane = document.querySelector(".about > .body");
    return { top: box.top, bottom: box.bottom, high: innerHeight, cut: pane.scrollHeight - pane.clientHeight,
        across: document.documentElement.scrollWidth - innerWidth };
}"""


@pytest.mark.parametrize("width", [1200, 900])
def test_the_inline_page_has_the_whole_story(page: Page, circuit: Circuit, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 1000})
    put(page, html_of(circuit))
    page.frame_locator("iframe").locator("ol.story").wait_for()
    seen = page.frames[-1].evaluate(TELLING)
    assert seen["cut"] <= 0 and seen["across"] <= 0
    assert 0 < seen["top"] < seen["bottom"] <= seen["high"]  # on the first screen of the frame
    words = page.frame_locator("iframe").locator(".title .asked-of").inner_text()
    assert words.endswith("drink to") and "Mary" in words


def test_texts_of_answers_are_texts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.web.server.prompt.token_texts", lambda tokenizer, ids: tuple(EVIL for _ in ids))
    assert "<img" not in html_of(run) and "&lt;img src=x onerror" in html_of(run)


def heard(widget: Widget, **content: Any) -> None:
    """As the front end says it."""
    widget._handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})


def test_a_firing_is_asked_and_what_is_measured_is_shown(run: Run) -> None:
    firing = run.explain((3, 6))
    widget = firing.widget()
    side = firing.side("src")
    for kind in ("remove", "boost", "random"):
        heard(widget, type=kind, side="src", signal=0)
    removed, boosted, random = (one["outcome"] for one in widget.effects)
    assert removed["predicted"] == pytest.approx(firing.attention - side.signals[0].alone, abs=1e-5)
    assert removed["after"] == pytest.approx(removed["predicted"], abs=AGREES) and removed["agrees"] is True
    assert boosted["after"] > firing.attention and abs(random["after"] - firing.attention) < 0.05
    heard(widget, type="remove", side="src", signal=None)
    assert widget.effects[-1]["outcome"]["after"] == pytest.approx(side.after, abs=AGREES)
    heard(widget, type="remove", side="src", signal=0, mode="global")  # in place of the first
    assert [one["mode"] for one in widget.effects] == ["exact", "exact", "exact", "global"]
    assert widget.effects[-1]["outcome"]["agrees"] is None
    heard(widget, type="remove", side="dest", signal=99)
    assert widget.effects[-1]["outcome"] is None and "there is no signal 99" in widget.effects[-1]["error"]
    heard(widget, type="forget", id=widget.effects[0]["id"])
    assert [one["type"] for one in widget.effects] == ["random", "remove", "remove", "remove"]
    assert widget.busy == {} and widget.errors == {}
    with pytest.raises(KeyholeError, match=r"remove, boost, random.*not 'dance'"):
        widget.do({"type": "dance"})


def test_from_a_firing_to_everything_else(run: Run) -> None:
    widget = run.explain((3, 6)).widget()
    widget.tokens = 600
    heard(widget, type="where", side=None, signal=None)
    assert widget.where["id"] == "3.6" and widget.where["shown"]
    heard(widget, type="where", side="dest", signal=0)
    assert "mlp 0" in widget.where["id"]
    heard(widget, type="explain-mlp", layer=0, pos=14, side="dest", signal=0)
    assert widget.mlp["layer"] == 0 and widget.mlp["causes"]
    heard(widget, type="trace-from")
    [node] = {edge["from"] for edge in widget.circuit["edges"] if edge["side"] == "target"}
    assert (
        widget.circuit["nodes"][node] | {"layer": 3, "head": 6, "dest": 14, "src": 11} == widget.circuit["nodes"][node]
    )
    edge = next(i for i, one in enumerate(widget.circuit["edges"]) if one["side"] == "src" and one["to"] == node)
    heard(widget, type="verify-edge", edge=edge)
    row = widget.verified[str(edge)]
    assert row["agrees"] is True and row["before"] == pytest.approx(widget.firing["attention"], abs=1e-5)
    heard(widget, type="open-firing", layer=2, head=3, dest=14, src=3)
    assert (widget.firing["layer"], widget.firing["src"], widget.effects, widget.where) == (2, 3, [], None)
    heard(widget, type="open-firing", layer=2, head=99, dest=14, src=3)
    assert "99" in widget.errors["firing"] and widget.firing["layer"] == 2
    heard(widget, type="close", what="circuit")
    assert widget.circuit is None and repr(widget) == "<Widget of a firing>"


def test_a_firing_is_asked_as_it_was_explained(run: Run) -> None:
    own = run.explain((3, 6), keys="source", tau=0.3)
    widget = own.widget()
    assert widget.firing["tau"] == 0.3
    assert [one.signals for one in own.sides] != [one.signals for one in run.explain((3, 6), tau=0.3).sides]
    heard(widget, type="remove", side="src", signal=None)
    assert widget.effects[0]["outcome"]["after"] == pytest.approx(own.side("src").after, abs=AGREES)
    with pytest.raises(KeyholeError, match="explained again"):
        replace(own, sides=(replace(own.sides[0], after=0.5), own.sides[1])).widget()


def test_a_circuit_from_a_file_needs_its_model_to_be_asked(circuit: Circuit, organism: Model) -> None:
    stored = from_json(circuit.to_json())
    edge = next(i for i, one in enumerate(stored.edges) if one.side == "dest")
    widget = stored.widget()
    assert widget.circuit["tokens"] == list(circuit.tokens) and widget.story
    assert not widget.actions
    for wish in (
        {"type": "verify-edge", "edge": edge},
        {"type": "open-firing", "layer": 3, "head": 6, "dest": 14, "src": 11},
    ):
        heard(widget, **wish)
    assert all("circuit.widget(model)" in widget.errors[name] for name in ("circuit", "firing"))
    asked = stored.widget(organism)
    heard(asked, type="verify-edge", edge=edge)
    assert asked.verified[str(edge)]["agrees"] is True and asked.errors == {}


def test_a_widget_tells_the_story_with_effects(page: Page, circuit: Circuit, organism: Model) -> None:
    own = circuit.story()
    assert own.metric is not None
    expected = json.loads(json.dumps(story_lines(circuit, own)))
    widget = circuit.widget()
    assert widget.story == expected and widget.story[0]["text"] == "Words that decide"
    stored = from_json(circuit.to_json())
    assert stored.widget(organism).story == expected
    assert "Not measured" in " ".join(line["text"] for line in stored.widget().story)  # nothing to measure it with
    assert widget.busy == {} and widget.errors == {}
    host(page, {"own": widget})
    page.locator("#own ol.story").first.wait_for()
    assert "Working" not in page.locator("#own").inner_text()
    shown = page.locator("#own .telling").inner_text()
    for path in own.paths:
        assert all(numbers(step) in shown for step in path.steps)
    high = page.locator("#own .about > .body").evaluate("(pane) => [pane.scrollHeight, pane.clientHeight]")
    assert high[0] <= high[1]  # nothing of it is cut off


def test_a_widget_of_changed_weights_says_so(circuit: Circuit, run: Run) -> None:
    widget = replace(circuit, run=replace(run, _stamp=-1)).widget()
    assert "changed" in widget.errors.get("circuit", "") and "Not measured" in " ".join(
        line["text"] for line in widget.story
    )


def test_without_anywidget_the_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keyhole.web.notebook")
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(KeyholeError, match=r"anywidget, which is missing: pip install 'keyhole\[notebook\]'"):
        run.explain((3, 6)).widget()


HOST = """([name, esm, css, state]) => {
  const listeners = {}, changed = {};
  const style = document.createElement('style'), el = document.createElement('div');
  style.textContent = css;
  document.head.append(style);
  el.id = name;
  document.querySelector('main').append(el);
  const take = (now) => { for (const [key, value] of Object.entries(now)) {
    if (JSON.stringify(state[key]) === JSON.stringify(value)) continue;
    state[key] = value;
    (listeners['change:' + key] ?? []).forEach((callback) => callback()); } };
  const model = {
    get: (key) => state[key],
    set: (key, value) => { state[key] = changed[key] = value; (listeners['change:' + key] ?? []).forEach((c) => c()); },
    save_changes: () => window.saved(name, { ...changed }),
    on: (event, callback) => (listeners[event] ??= []).push(callback),
    off: (event, callback) => { listeners[event] = (listeners[event] ?? []).filter((one) => one !== callback); },
    send: async (content) => take(await window.sent(name, content)),
  };
  window['push_' + name] = take;
  const url = URL.createObjectURL(new Blob([esm], { type: 'text/javascript' }));
  return import(url).then((made) => { window['leave_' + name] = made.default.render({ model, el }); });
}"""  # a model as anywidget has it, with a kernel behind `sent` and `saved`


def host(page: Page, widgets: dict[str, Widget]) -> None:
    def state(widget: Widget) -> dict[str, Any]:
        return {
            name: getattr(widget, name)
            for name in widget.keys
            if not name.startswith("_") and name not in ("layout", "tabbable", "tooltip")
        }

    def sent(name: str, content: dict[str, Any]) -> dict[str, Any]:
        heard(widgets[name], **content)
        return state(widgets[name])

    page.expose_function("sent", sent)
    page.expose_function("saved", lambda name, changes: widgets[name].set_state(changes))
    for name, widget in widgets.items():
        page.evaluate(HOST, [name, widget._esm, widget._css, state(widget)])


def test_widgets_in_a_page_ask_their_kernel(page: Page, evil: Run) -> None:
    before = page.evaluate(LOOK)
    firing: Firing = evil.explain((3, 6))
    traced = evil.trace("Mary")
    widgets = {"why": firing.widget(), "what": traced.widget(), "other": firing.widget()}
    host(page, widgets)
    page.locator("#what svg.circuit .mark").first.wait_for()
    assert page.evaluate(LOOK) == before and page.locator("img, main b:text-is('bold')").count() == 0
    row = page.locator("#why [data-side=src][data-signal='0']")
    row.locator("[data-does=remove]").click()
    card = row.locator(".effect .numbers")
    card.wait_for()
    told = {
        name: float(card.locator(f"[data-number={name}]").get_attribute("data-value") or "nan")
        for name in ("predicted", "after")
    }
    assert told["after"] == pytest.approx(firing.attention - firing.side("src").signals[0].alone, abs=AGREES)
    assert told["after"] == pytest.approx(told["predicted"], abs=AGREES) and "as predicted" in card.inner_text()
    assert page.locator("#other .effect").count() == 0 and widgets["other"].effects == []
    page.locator("#why select").select_option("global")
    page.locator("#why [data-side=src][data-signal=all] [data-does=remove]").click()
    page.locator("#why [data-signal=all] .effect .numbers").wait_for()
    assert widgets["why"].effects[-1]["mode"] == "global"
    page.locator("#why [data-action=trace-from]").click()
    page.locator("#why svg.circuit .mark").first.wait_for()
    page.locator("#why [data-close=circuit]").click()
    page.locator("#why svg.circuit").wait_for(state="hidden")
    page.evaluate("() => window.leave_why()")


def test_what_is_done_to_a_circuit_comes_back(page: Page, circuit: Circuit) -> None:
    widgets = {"a": circuit.widget(), "b": circuit.widget()}
    host(page, widgets)
    node = next(i for i, one in enumerate(circuit.nodes) if (one.layer, one.head) == (1, 6))
    page.locator(f"#a [data-mark=n{node}]").dispatch_event("click")
    page.wait_for_function("() => document.querySelector('#a .pane.about h3')")
    assert widgets["a"].view == {"pinned": [f"n{node}"]} and widgets["b"].view == {}
    page.locator("#a").get_by_role("button", name="Rename").click()
    page.locator("#a form.rename input").fill("fetches <b>the name</b>")
    page.locator("#a form.rename").get_by_role("button", name="Keep").click()
    assert widgets["a"].view["labels"] == {f"n{node}": "fetches <b>the name</b>"}
    page.evaluate("(view) => window.push_b({ view })", {"pinned": [f"n{node}"]})  # as Python says `b.view = ...`
    page.locator("#b").get_by_role("button", name="Why here?").click()
    page.locator("#b .why h3.which").wait_for()
    assert widgets["b"].firing["layer"] == 1 and widgets["a"].firing is None
    page.locator("#b .why h3.which").scroll_into_view_if_needed()


def test_the_example_runs_and_is_as_it_was_kept(page: Page) -> None:
    kept, now = nbformat.read(NOTEBOOK, as_version=4), execute(NOTEBOOK)
    assert 6 <= len([cell for cell in kept.cells if cell.cell_type == "code"]) <= 12

    def kinds(notebook: Any) -> list[Any]:
        return [
            [(one.output_type, sorted(one.get("data", ()))) for one in cell.get("outputs", [])]
            for cell in notebook.cells
        ]

    assert kinds(kept) == kinds(now) and "error" not in str(kinds(kept))
    for notebook in (kept, now):
        state = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"].values()
        shown = [one["state"] for one in state if one["model_name"] == "AnyModel"]
        assert {one["first"] for one in shown} == {"circuit", "firing"}
        assert all("export default" in one["_esm"] and one[one["first"]]["tokens"][2] == "Mary" for one in shown)
        [measured] = [one["effects"][-1]["outcome"] for one in shown if one["effects"]]
        assert np.isclose(measured["after"], measured["predicted"], atol=AGREES) and measured["before"] > 0.4
        assert next(one["view"] for one in shown if one["first"] == "circuit")["labels"]
    outputs = [one for cell in kept.cells for one in cell.get("outputs", [])]
    put(page, *(one["data"]["text/html"] for one in outputs if "text/html" in one.get("data", {})))
    page.frame_locator("iframe").locator("svg.scatter circle.point").first.wait_for()
