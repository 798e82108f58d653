"""Do the explorer's further views show what the library finds? Two circuits, stores, contrasts, verifications."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from scipy.cluster.hierarchy import leaves_list, linkage

import keyhole
from chromium import Watched, chromium
from explorers import EVIL, evil_model, explorer
from keyhole import Model
from keyhole.naming.record import Naming
from keyhole.store import Store, bulk
from keyhole.studies.comparison.compare import compare
from keyhole.tasks.example import Example

pytestmark = pytest.mark.xdist_group("explorer")
IOI = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Albert and Gloria went to the store, Albert gave a drink to"
expect.set_options(timeout=60_000)
N = 52  # prompts of the store: more than a page of them


@dataclass(frozen=True)
class Made:
    """What the server was started with."""

    address: str
    store: Store
    naming: Naming
    evil: Path


@pytest.fixture(scope="module")
def made(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("views")
    store = bulk("ioi", organism, out=folder / "ioi.store", n=N)
    named = keyhole.name(store.circuit(0), organism, most=2, random=2, tokens=1500)
    first, *others = named.signals
    shown = replace(first.examples[0], tokens=EVIL, dest=3, src=1)
    naming = replace(named, signals=(replace(first, examples=(shown, *first.examples)), *others))
    naming.save(folder / "names.json")
    evil = evil_model(folder / "evil")
    text = " ".join((*EVIL, "w1", EVIL[0]))
    told = {"task": "evil", "text": text, "answer": "w3", "against": (), "answers": ("w3",), "template": "one"}
    one = Example(**told, roles={"END": (len(text) - 1, len(text))}, continuation=" w3", labels={"kind": EVIL[0]})
    bulk([one, replace(one, labels={"kind": "w2"})], keyhole.load(evil), out=folder / "evil.store")
    given = ["organism", str(evil), "--store", str(store.path), "--store", str(folder / "evil.store")]
    with explorer(*given, "--names", str(folder / "names.json")) as address:
        yield Made(address, store, naming, evil)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Watched(context)
    found.page.on("dialog", lambda dialog: found.wrong.append(f"a token was run: {dialog.message}"))
    yield found.page
    assert not found.page.locator("img:not([src='icon.svg'])").count(), "a token became an element"
    context.close()
    assert not found.wrong


def opened(page: Page, made: Made, **place: str) -> Page:
    page.goto(f"{made.address}&{urlencode({'prompt': IOI, **place})}")
    return page


def where(page: Page) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def read(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("%", "").replace("+", ""))


def answered(page: Page, kind: str, act: Callable[[], object]) -> Any:
    """What the server answered to the job that this starts; the page has heard it, too."""

    def asks(answer: Any) -> bool:
        sent = answer.request.post_data or "{}"
        return answer.url.endswith("/api/jobs") and answer.request.method == "POST" and json.loads(sent)["kind"] == kind

    with page.expect_response(asks) as posted:
        act()
    number = posted.value.json()["id"]
    return page.evaluate(_WAIT, number)


_WAIT = """async (number) => {
  for (;;) {
    const job = await (await fetch(`api/jobs/${number}`)).json();
    if (!["queued", "running"].includes(job.state)) return job.result;
    await new Promise((go) => setTimeout(go, 30));
  }
}"""


def test_two_circuits(page: Page, made: Made, organism: Model) -> None:
    opened(page, made, tab="compare")
    page.fill("[aria-label='The other prompt']", OTHER)
    page.press("[aria-label='The other prompt']", "Enter")
    parts = page.locator(".venn .part")
    expect(parts).to_have_count(3)
    circuits = [organism.run(prompt).trace() for prompt in (IOI, OTHER)]
    terms = compare(*circuits).record()["terms"]
    rows = terms["heads"]["rows"]
    counts = [sum(bool(r["a"]) and not r["b"] for r in rows), sum(bool(r["a"] and r["b"]) for r in rows)]
    counts.append(len(rows) - sum(counts))
    assert [int(part.get_attribute("data-count") or -1) for part in parts.all()] == counts
    table = page.locator(".terms tr[data-term]")
    assert sorted(row.get_attribute("data-term") or "" for row in table.all()) == sorted(r["term"] for r in rows)
    alone = {row["term"] for row in rows if not (row["a"] and row["b"])}
    assert {row.get_attribute("data-term") for row in table.all()[: len(alone)]} == alone, "differences come first"
    for side, circuit in zip(("a", "b"), circuits, strict=True):
        shared = [f"{n.layer}.{n.head}" for n in circuit.nodes if n.kind == "head"]
        both = {row["term"] for row in rows if row["a"] and row["b"]}
        drawn = page.locator(f"[data-side={side}] .marks .mark.head.shared")
        assert drawn.count() == sum(name in both for name in shared) > 0
    places = [i for i, n in enumerate(circuits[0].nodes) if (n.kind, n.layer, n.head) == ("head", 1, 6)]
    influence = sum(circuits[0].influence[i] for i in places)
    cell = page.locator("tr[data-term='1.6'] td.number").first
    assert read(cell.inner_text()) == pytest.approx(100 * influence, abs=0.51)


def test_one_answer_with_and_without_mlps(page: Page, made: Made) -> None:
    opened(page, made, tab="compare", compared="1", **{"b.through": "heads"})
    expect(page.locator("[data-side=b] .marks .mark.head.shared").first).to_be_attached()
    assert page.locator("[data-side=a] .marks .mark.left-only").count() > 0
    assert page.locator("[data-side=b] .marks .mark.right-only").count() == 0
    page.click("tr[data-term='1.6']")
    expect(page.locator("[data-side=a] .marks .mark.pinned").first).to_have_text(re.compile("1.6"))
    page.click("[data-choice=shared]")
    assert page.locator(".terms .dot.left-only").count() == 0
    page.click("[data-choice=edges]")
    expect(page.locator("tr[data-term='1.6 -> answer'] .dot.shared")).to_be_visible()
    kept = where(page)
    assert (kept["show"], kept["terms"], kept["b.through"]) == ("shared", "edges", "heads")
    page.reload()
    expect(page.locator("tr[data-term='1.6 -> answer']")).to_be_visible()


def test_one_answer_by_two_methods(page: Page, made: Made) -> None:
    """Their channels are numbered in other bases, so that heads and edges alone are compared."""
    opened(page, made, tab="compare", compared="1", terms="channels", **{"b.method": "svt"})
    expect(page.locator(".terms p.note").first).to_contain_text("Traced with accpp and with svt")
    assert page.locator("[data-choice=edges]").count() == 1 and page.locator("[data-choice=channels]").count() == 0
    expect(page.locator("tr[data-term='1.6'] .dot.shared")).to_be_visible()


def test_two_models_and_tokens_that_are_no_words(page: Page, made: Made) -> None:
    opened(page, made, tab="compare")
    page.fill("[aria-label='The other prompt']", " ".join((*EVIL, "w1", "w2")))
    page.fill("[aria-label='The other model']", str(made.evil))
    page.locator("[aria-label='MLPs']").first.select_option("heads")  # draws the form anew: what was typed stays
    assert page.input_value("[aria-label='The other prompt']").endswith("w1 w2")
    page.click("[data-action=compare]")
    expect(page.locator("[data-side=b] .marks .mark").first).to_be_attached()
    assert EVIL[1] in (page.locator("[data-side=b] svg.circuit").text_content() or "")
    page.fill("[aria-label='The other model']", "nonsense")
    page.click("[data-action=compare]")
    expect(page.locator(".terms .error")).to_contain_text("nonsense")


def test_a_whole_verification(page: Page, made: Made, organism: Model) -> None:
    opened(page, made, tab="verification")
    page.click(".view.verification [data-action=trace]")
    page.click("[data-action=verify]")
    page.wait_for_selector(".scatter.large")
    found = organism.run(IOI).trace().verify(draws=3)
    head = page.locator(".verdict h3[data-met]")
    assert int(head.get_attribute("data-of") or 0) == len(found.rows) == int(head.get_attribute("data-met") or 0)
    assert page.locator(".scatter.large .point").count() == len(found.rows)
    assert page.locator(".scatter.large circle.random").count() == sum(len(row.control_drops) for row in found.rows)
    table = page.locator("tr[data-row]")
    ranked = found.causes.ranked
    effects = [read(row.locator("td.number").nth(0).inner_text()) for row in table.all()]
    assert [abs(one) for one in effects] == sorted((abs(one) for one in effects), reverse=True)
    assert effects == pytest.approx([cause.effect for cause in ranked], abs=6e-4)
    assert [row.locator("td").nth(5).inner_text() for row in table.all()] == [cause.verdict for cause in ranked]
    matter = [sum(group.supporting for group in found.causes.groups), sum(g.holding_back for g in found.causes.groups)]
    said = f"{sum(matter)} of {len(ranked)} removals matter to the answer by more than controls: {matter[0]} support it"
    expect(page.locator(".view.verification [data-causes]")).to_contain_text(said)
    for group in found.causes.groups:
        cells = page.locator(f'tr[data-kind="{group.kind}"] td.number').all_inner_texts()
        assert cells[:3] == [str(len(group.causes)), str(group.supporting), str(group.holding_back)]
    for point in page.locator(".scatter.large circle.point").all()[:8]:  # on the diagonal: up as far as to the right
        x, y = (float(point.get_attribute(name) or 0) for name in ("cx", "cy"))
        line = page.locator(".scatter.large .diagonal")
        a, b, c, d = (float(line.get_attribute(name) or 0) for name in ("x1", "y1", "x2", "y2"))
        assert (x - a) / (c - a) == pytest.approx((y - b) / (d - b), abs=0.01)
    table.first.hover()
    expect(page.locator(".scatter.large .point.lit")).to_have_count(1)
    assert where(page)["verify"] == "exact"


def test_prompts_of_a_store(page: Page, made: Made) -> None:
    opened(page, made, tab="store", store="ioi.store")
    total = page.locator("[data-total]")
    expect(total).to_have_text(f"1 to 50 of {N}")
    page.click("[aria-label=Later]")
    expect(page.locator("tr[data-index]")).to_have_count(N - 50)
    page.locator(".filters select[aria-label=order]").select_option("ABBA")
    abba = made.store.table("prompts", columns=["prompt"], where={"label_order": "ABBA"})["prompt"].to_pylist()
    expect(total).to_have_attribute("data-total", str(len(abba)))
    rows = page.locator("tr[data-index]")
    expect(rows).to_have_count(len(abba))
    assert [int(row.get_attribute("data-index") or -1) for row in rows.all()] == abba
    index = abba[1]
    page.click(f"tr[data-index='{index}'] .prompt-text")
    circuit = made.store.circuit(index)
    expect(page.locator(".tools .amount")).to_contain_text(f"of {len(circuit.nodes)} nodes")
    assert (where(page)["index"], where(page)["traced"]) == (str(index), "stored")
    expect(page.locator(".prompt textarea")).to_have_value(made.store[index].example.text)
    page.reload()
    expect(page.locator(".tools .amount")).to_contain_text(f"of {len(circuit.nodes)} nodes")


def test_a_store_beside_the_page(page: Page, made: Made) -> None:
    opened(page, made, tab="store", store="ioi.store")
    page.click("tr[data-index='3'] button.small")
    expect(page.locator("[data-side=b] .tools .amount")).to_contain_text(f"of {len(made.store.circuit(3).nodes)} nodes")


def test_families(page: Page, made: Made) -> None:
    place = {"tab": "store", "store": "ioi.store", "part": "families", "grain": "heads", "k": "2"}
    cut = answered(page, "families", lambda: opened(page, made, **place))
    expect(page.locator(".verdict-line")).to_have_text(cut["verdict"])
    word = {(True, True): "yes", (True, False): "yes", (False, True): "no, a split", (False, False): "no"}
    rows = [word[level["separate"], level["split"]] for level in cut["levels"] for _ in level["nulls"]]
    beside = page.locator("table[aria-label='Families beside chance'] tbody tr td:last-child")
    assert sorted(beside.all_inner_texts()) == sorted(rows)
    expect(page.locator("canvas.clusters")).to_have_attribute("data-leaves", str(len(cut["sample"])))
    expect(page.locator(".family")).to_have_count(len(cut["families"]))
    for card, family in zip(page.locator(".family").all(), cut["families"], strict=True):
        assert f"{family['size']} circuit" in card.inner_text()
        assert f"prompt {family['representative']}" in card.inner_text()
    page.locator("select[aria-label=colours]").select_option("wording")
    expect(page.locator(".family-map .key.inline li").first).to_have_text("wording")
    box = page.locator("canvas.clusters").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 4)
    expect(page.locator(".cluster-map .told")).to_contain_text("distance")
    first = cut["families"][0]["representative"]
    page.click(f".family [data-representative='{first}']")
    expect(page.locator(".tools .amount")).to_contain_text(f"of {len(made.store.circuit(first).nodes)} nodes")
    assert where(page)["index"] == str(first)


def test_leaves_stand_as_scipy_has_them(page: Page, made: Made) -> None:
    opened(page, made)
    points = [[0.0], [3.1], [0.4], [9.0], [3.0], [8.1], [20.0]]
    tree = linkage(points, "average")
    found = page.evaluate("t => import('./views/store/tree.js').then(m => m.leavesOf(t, t.length + 1))", tree.tolist())
    assert found == leaves_list(tree).tolist()


def test_values_have_colours_by_how_often_they_occur(page: Page, made: Made) -> None:
    opened(page, made)
    values = [10, "b", None, 9, "b", 10, "b", "", 9]  # labels of orders are numbers
    assert page.evaluate("v => import('./lib/palette.js').then(m => m.distinct(v))", values) == ["b", "9", "10"]


def test_sinks(page: Page, made: Made) -> None:
    opened(page, made, tab="store", store="ioi.store", part="sinks")
    page.fill("input[name=sinks]", "6")
    told = answered(page, "sinks", lambda: page.click("[data-action=sinks]"))["told"]
    expect(page.locator(".verdict-line")).to_have_text(told["opening"])
    for side in told["sides"]:
        own = page.locator(f".sink-side[data-side={side['side']}]")
        expect(own.locator("h3")).to_have_text(f"{side['side']} side: {side['found']}")
        expect(own.locator(".told-lines li")).to_have_text(side["lines"])
        assert own.locator(".plain-table").count() == len(side["tables"])
    assert where(page)["sinks"] == "6"


def test_names_and_their_evidence(page: Page, made: Made) -> None:
    opened(page, made, tab="store", part="names")
    rows = page.locator("tr[data-signal]")
    expect(rows).to_have_count(len(made.naming.signals))
    for row, named in zip(rows.all(), made.naming.signals, strict=True):
        assert (named.name.text or "no valid interpretation") in row.inner_text()
        assert row.locator(".outcome").inner_text() == named.outcome()
    first = made.naming.signals[0]
    example = page.locator(".example").first
    expect(example.locator("mark.dest")).to_have_text(EVIL[3])
    expect(example.locator("mark.src")).to_have_text(EVIL[1])
    assert EVIL[0] in example.inner_text()
    assert page.locator(".name-evidence .outcome").count() == 1 + len(first.tests)
    last = made.naming.signals[-1]
    rows.last.click()
    expect(page.locator(".name-evidence h3")).to_have_text(last.id)
    shown = last.examples[0]
    expect(page.locator(".example").first.locator("mark").first).to_have_text(shown.tokens[min(shown.src, shown.dest)])
    assert where(page)["signal"] == last.id


def test_a_choice_that_is_made_by_keys_keeps_the_focus(page: Page, made: Made) -> None:
    opened(page, made, tab="store")
    choice = ".store-bar [data-choice=names]"
    page.focus(choice)
    page.keyboard.press("Enter")
    page.wait_for_selector("tr[data-signal]")
    expect(page.locator(choice)).to_be_focused()


def test_a_store_whose_texts_are_no_words(page: Page, made: Made) -> None:
    opened(page, made, tab="store", store="evil.store")
    expect(page.locator("tr[data-index]")).to_have_count(2)
    assert all(word in page.locator("tr[data-index='0']").inner_text() for word in EVIL)
    page.locator(".filters select[aria-label=kind]").select_option(EVIL[0])
    expect(page.locator("tr[data-index]")).to_have_count(1)


def test_a_head_without_a_feature_says_why_and_what_other_settings_give(page: Page, made: Made) -> None:
    opened(page, made, tab="contrasts", contrast="boxes", feature="order")
    page.fill("input[name=samples]", "24")
    page.fill("input[name=tests]", "12")
    found = answered(page, "contrast", lambda: page.click("[data-action=contrast]"))
    case = next(one for one in found["no_feature"] if one["head"] == found["selected"][0])
    shown = page.locator(f".no-feature[data-empty='{case['head']}:order']")
    expect(shown.locator("h4")).to_have_text(f"No feature of order in {case['head']}")
    assert shown.locator("li").all_inner_texts() == case["why"]
    rows = shown.locator("tbody tr")
    assert [row.get_attribute("data-options") for row in rows.all()] == [o["options"] for o in case["alternatives"]]
    for row, other in zip(rows.all(), case["alternatives"], strict=True):
        cells = row.locator("td").all_inner_texts()
        assert int(cells[1]) == other["rank"] and cells[-1] == other["result"]
        if other["swap"] is not None:
            numbers = [other["swap"]["shift"], other["permuted"], other["swap"]["random"], other["swap"]["full"]]
            assert [read(text) for text in cells[4:8]] == pytest.approx(numbers, abs=6e-4)
    bar = page.locator(f"[data-feature=order] tr[data-head='{case['head']}'] td.number")
    assert [text.strip() for text in bar.all_inner_texts()[:3]] == ["\u2013", "0", "\u2013"]


def test_contrasts(page: Page, made: Made) -> None:
    opened(page, made, tab="contrasts")
    page.fill("input[name=samples]", "2000")
    page.click("[data-action=contrast]")
    page.click("[data-waiting=contrast] [data-action=cancel]")
    expect(page.locator(".state-line .error")).to_have_text("Cancelled.")
    page.fill("input[name=samples]", "24")
    page.fill("input[name=tests]", "12")
    found = answered(page, "contrast", lambda: page.click("[data-action=contrast]"))
    page.wait_for_selector(".cloud-plot")
    head, (name, *_) = found["selected"][0], found["samples"]["given"]
    heads = {row["head"]: row for row in found["heads"]}
    listed = page.locator(f"[data-feature={name}] tr[data-head]")
    assert [row.get_attribute("data-head") for row in listed.all()[: len(found["selected"])]] == sorted(
        found["selected"], key=lambda one: -heads[one]["features"][name]["share"]
    )
    row = page.locator(f"[data-feature={name}] tr[data-head='{head}'] td.number")
    feature = heads[head]["features"][name]
    assert read(row.nth(0).inner_text()) == pytest.approx(feature["share"], abs=6e-3)
    assert int(row.nth(1).inner_text()) == feature["rank"]
    cloud = found["clouds"][head][name]
    assert page.locator(".cloud-plot .query-point").count() == len(cloud["queries"]) > 0
    fills = page.locator(".cloud-plot .key-point").evaluate_all("all => all.map(one => one.style.fill)")
    assert len(set(fills)) == len(set(cloud["labels"])) > 1
    swaps = page.locator(".swaps").first.locator(".swap")
    assert [swap.get_attribute("data-swap") for swap in swaps.all()] == [one["name"] for one in heads[head]["swaps"]]
    for swap, one in zip(swaps.all(), heads[head]["swaps"], strict=True):
        said = [read(text) for text in swap.locator("em").all_inner_texts()]
        assert said[:2] == pytest.approx([one["orig"], one["target"]], abs=6e-3)
        assert len(said) == 2 + (one["random"] is not None)
