"""Does the explorer write on, and say what the model would say with edits? In Chromium, as the library does."""

import json
import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from chromium import Watched, chromium
from conftest import SMOLLM2
from explorers import explorer
from keyhole import Model, load
from keyhole.circuits.circuit import Circuit
from keyhole.edits.files import edit_of, plain, typed_edit
from keyhole.generation import Beside, Generated, beside

pytestmark = pytest.mark.xdist_group("explorer")
IOI = "When Mary and John went to the store, John gave a drink to"
BOXES = "Box A has the apple. Box B has the book. Box A has"  # after which the organism writes on and on
# Cancel is pressed as soon as a few tokens are there.
CANCELS = """() => new MutationObserver((_, self) => {
    const button = document.querySelector(".written [data-action=cancel]");
    if (button && document.querySelectorAll(".written .chip").length) { self.disconnect(); button.click(); }
}).observe(document.body, { childList: true, subtree: true })"""
COUNTS = """() => {
    window.lengths = [];
    new MutationObserver(() => window.lengths.push(document.querySelectorAll(".written span.chip").length))
        .observe(document.querySelector(".written"), { childList: true, subtree: true });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with explorer() as found:
        yield found


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Watched(context)
    found.page.set_default_timeout(120_000)
    expect.set_options(timeout=30_000)
    yield found
    context.close()
    assert not found.wrong


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page


@pytest.fixture(scope="module")
def answer(organism: Model) -> Generated:
    return organism.generate(BOXES, max_new_tokens=40)


@pytest.fixture(scope="module")
def circuit(organism: Model) -> Circuit:
    return organism.run(IOI).trace()


def opened(page: Page, address: str, **place: str) -> Page:
    page.goto(f"{address}&{urlencode(place)}")
    page.wait_for_selector(".tokens .chip")
    return page


def where(page: Page) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def written(page: Page) -> list[str]:
    """The tokens of the answer, once all of it is there."""
    page.wait_for_selector(".written button.chip")
    return [title.split(", probability")[0] for title in _titles(page, ".written button.chip")]


def _titles(page: Page, query: str) -> list[str]:
    return [one.get_attribute("title") or "" for one in page.locator(query).all()]


def both(page: Page, number: int = 1) -> dict[str, list[str]]:
    """Both answers, once they are there for so many edits."""
    expect(page.locator("ul.edits li")).to_have_count(number)
    expect(page.locator(".view.edits .waiting")).to_have_count(0)
    page.wait_for_selector(".said-answer")
    return {which: _titles(page, f"[data-answer={which}] .chip") for which in ("original", "edited")}


def as_shown(found: Beside) -> dict[str, list[str]]:
    answers = {"original": found.original, "edited": found.edited}
    return {which: [one.text for one in said.tokens] for which, said in answers.items()}


def texts(titles: dict[str, list[str]]) -> dict[str, list[str]]:
    return {which: [json.loads(title.split(", probability")[0]) for title in own] for which, own in titles.items()}


def test_the_model_writes_on_and_every_token_has_its_probability(page: Page, address: str, answer: Generated) -> None:
    opened(page, address, prompt=BOXES).evaluate(COUNTS)
    page.click("[data-action=continue]")
    assert [json.loads(text) for text in written(page)] == [token.text for token in answer.tokens]
    assert len(answer.tokens) == 40
    for chip, token in zip(page.locator(".written button.chip").all(), answer.tokens, strict=True):
        assert float(chip.get_attribute("data-probability") or "nan") == pytest.approx(token.probability, abs=1e-6)
    assert any(0 < length < 40 for length in page.evaluate("window.lengths")), "tokens did not appear as they came"
    expect(page.locator(".written .standing")).to_contain_text("after 40 tokens")


def test_length_and_temperature_are_in_the_address_and_heeded(page: Page, address: str, organism: Model) -> None:
    opened(page, address, prompt=BOXES, length="7", temperature="1.5", seed="3")
    page.click("[data-action=continue]")
    expected = organism.generate(BOXES, max_new_tokens=7, temperature=1.5, seed=3)
    assert [json.loads(text) for text in written(page)] == [token.text for token in expected.tokens]
    page.fill(".written input[name=length]", "3")
    page.press(".written input[name=length]", "Enter")
    page.click("[data-action=again]")
    expect(page.locator(".written button.chip")).to_have_count(3)
    assert where(page)["length"] == "3"


def test_what_was_written_until_a_cancellation_stays(page: Page, address: str, answer: Generated) -> None:
    opened(page, address, prompt=BOXES, length="100").evaluate(CANCELS)
    page.click("[data-action=continue]")
    tokens = [json.loads(text) for text in written(page)]
    whole = answer.run.model.generate(BOXES, max_new_tokens=100)
    assert 0 < len(tokens) < len(whole.tokens)
    assert tokens == [token.text for token in whole.tokens][: len(tokens)]
    expect(page.locator(".written .standing")).to_contain_text(f"It was cancelled after {len(tokens)} token")
    page.click(".written [data-action=again]")  # and the next answer is whole
    expect(page.locator(".written button.chip")).to_have_count(len(whole.tokens))


def test_a_click_on_a_token_asks_why_it_was_written(page: Page, address: str, answer: Generated) -> None:
    opened(page, address, prompt=BOXES)
    page.click("[data-action=continue]")
    written(page)
    page.click(".written [data-index='6']")
    page.wait_for_selector(".view.circuit .mark.target")
    place = where(page)
    assert place["target"] == str(answer.tokens[6].id)
    assert [int(one) for one in place["ids"].split(",")] == list(answer.before(6).token_ids)
    expect(page.locator(".tokens[aria-label=Tokens] .chip")).to_have_count(answer.start + 6)
    circuit = answer.trace(6)
    expect(page.locator(".view.circuit .tools")).to_contain_text(f"{len(circuit.edges)} edges")
    expect(page.locator(".written [aria-current]")).to_have_attribute("data-index", "6")
    story = answer.story(6)
    expect(page.locator(".beside .pane").first).to_contain_text(re.compile("Paths|decide"))
    assert story.paths
    page.click(".written [data-index='0']")  # the first token is one of the prompt itself
    expect(page.locator(".written [aria-current]")).to_have_attribute("data-index", "0")
    assert "ids" not in where(page)
    page.go_back()
    page.go_back()
    expect(page.locator(".tokens[aria-label=Tokens] .chip")).to_have_count(answer.start)
    assert "target" not in where(page)
    expect(page.locator(".written button.chip")).to_have_count(40)  # the answer to this prompt is still there
    page.fill("textarea", IOI)
    page.press("textarea", "Enter")
    expect(page.locator(".written")).to_be_hidden()


def test_an_edge_is_removed_and_both_answers_are_shown(page: Page, address: str, circuit: Circuit) -> None:
    index = next(i for i, edge in enumerate(circuit.edges) if edge.side == "src")
    model = circuit.run.model if circuit.run is not None else None
    assert model is not None
    view = json.dumps({"edge": index})
    opened(page, address, prompt=IOI, tab="circuit", traced="answer", view=view)
    for factor in (0.0, 0.5):
        if factor:
            page.go_back()
        page.click(f".view.circuit .what-if [data-factor='{factor:g}']")
        shown = both(page)
        edit = circuit.edit(circuit.edges[index], factor=factor)
        assert json.loads(where(page)["edits"]) == [json.loads(json.dumps(plain(edit)))]
        expected = beside(model, IOI, [edit], controls=1, max_new_tokens=40)
        assert texts(shown) == as_shown(expected)
        rows = page.locator("table[aria-label='Token by token'] tbody tr")
        expect(rows).to_have_count(len(expected.tokens))
        heads = page.locator("table[aria-label='Heads that looked elsewhere'] tbody button")
        assert heads.all_text_contents() == [f"{h.head[0]}.{h.head[1]}" for h in expected.heads]
        expect(page.locator("table[aria-label='Controls'] tbody tr")).to_have_count(1)


def test_edits_are_collected_and_each_can_be_left_out(page: Page, address: str, circuit: Circuit) -> None:
    model = circuit.run.model if circuit.run is not None else None
    assert model is not None
    firing = next(i for i, node in enumerate(circuit.nodes) if node.kind == "head")
    node = circuit.nodes[firing]
    opened(page, address, prompt=IOI, tab="edits")
    for number, text in enumerate(("3.1*0", "1.6*0", "mlp3*0"), 1):
        page.fill(".typed input", text)
        page.press(".typed input", "Enter")
        shown = both(page, number)
    edits = [typed_edit(text) for text in ("3.1*0", "1.6*0", "mlp3*0")]
    expected = beside(model, IOI, edits, max_new_tokens=40)
    assert texts(shown) == as_shown(expected)
    assert expected.changed
    expect(page.locator(".verdict-line")).to_have_text("The edits change the answer.")
    page.click("ul.edits li:nth-child(3) button")
    assert texts(both(page, 2)) == as_shown(beside(model, IOI, edits[:2], max_new_tokens=40))
    page.locator("ul.edits li").first.locator("select").select_option("2")
    expect(page.locator("ul.edits li").first.locator("select")).to_have_value("2")
    assert [edit_of(one).factor for one in json.loads(where(page)["edits"])] == [2, 0]  # type: ignore[attr-defined]
    page.click("[data-action=no-edits]")
    expect(page.locator(".said-answer")).to_have_count(0)
    page.fill(".typed input", "none")
    page.press(".typed input", "Enter")
    expect(page.locator(".typed [role=alert]")).to_contain_text("is no edit")
    place = {"head": f"{node.layer}.{node.head}", "dest": str(node.dest), "src": str(node.src)}
    opened(page, address, prompt=IOI, **place)
    page.click(".why .what-if [data-factor='0']")
    signals = organism_edits(model, place)
    both(page, len(signals))
    assert json.loads(where(page)["edits"]) == signals


def organism_edits(model: Model, place: dict[str, str]) -> list[object]:
    """What a firing's own edits are, as the page has them."""
    layer, head = map(int, place["head"].split("."))
    firing = model.run(IOI).explain((layer, head), int(place["dest"]), int(place["src"]))
    found: list[object] = json.loads(json.dumps([plain(edit) for edit in firing.edits()]))
    return found


def test_a_chat_is_written_on_and_asked(page: Page, address: str) -> None:
    question = "What is the capital of France?"
    opened(page, address, prompt=question, model=str(SMOLLM2), length="5")
    page.click("[data-action=chat]")
    expect(page.locator(".tokens[aria-label=Tokens] .chip").first).to_contain_text("<|im_start|>")
    page.click("[data-action=continue]")
    model = load(str(SMOLLM2))
    answer = model.generate([{"role": "user", "content": question}], max_new_tokens=5)
    assert [json.loads(text) for text in written(page)] == [token.text for token in answer.tokens]
    page.click(".written [data-index='2']")
    expect(page.locator(".tokens[aria-label=Tokens] .chip").last).to_contain_text(answer.tokens[1].text.strip())
    assert [int(one) for one in where(page)["ids"].split(",")] == list(answer.before(2).token_ids)
    expect(page.locator(".prompt textarea")).to_have_value(question)


def test_both_answers_can_be_cancelled_and_asked_for_again(page: Page, address: str) -> None:
    opened(page, address, prompt=BOXES, tab="edits", length="100").evaluate(
        CANCELS.replace(".written [data", ".view.edits [data").replace(".written .chip", ".view.edits progress")
    )
    page.fill(".typed input", "3.1*0")
    page.press(".typed input", "Enter")
    page.click(".view.edits [data-action=beside]")
    shown = both(page)
    assert len(shown["original"]) > 40


def test_what_an_address_says_of_edits_is_no_markup_and_may_be_wrong(page: Page, address: str) -> None:
    wrong = json.dumps([{"kind": "<img src=x onerror=alert(1)>"}])
    opened(page, address, prompt=IOI, tab="edits", edits=wrong)
    expect(page.locator(".view.edits [role=alert]:visible")).to_contain_text("choose one of")
    opened(page, address, prompt=IOI, tab="edits", edits="[")
    expect(page.locator(".edit-list")).to_contain_text("What would the model say")
