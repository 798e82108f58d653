"""Is what matters in sight? The circuit and its story at 1440 x 900, measured in a real Chromium, on both models."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from chromium import Watched, chromium
from conftest import SMOLLM2
from explorers import explorer
from keyhole import Model
from keyhole.circuits.records import Writer
from keyhole.models.tokens import token_texts
from keyhole.tracing.linear import answer_pushes
from keyhole.tracing.writers import written_by

pytestmark = pytest.mark.xdist_group("explorer")
IOI = "When Mary and John went to the store, John gave a drink to"
WIDE, HIGH = 1440, 900
MODELS = {"organism": None, "smollm2": str(SMOLLM2)}
LABELS = """() => [...document.querySelectorAll(".marks .mark text.name")].map((name) => {
    const scale = name.getScreenCTM().a;
    return [name.textContent, parseFloat(getComputedStyle(name).fontSize) * scale];
})"""
WORDS = "() => [...document.querySelectorAll('.axes .word')].map((word) => word.textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with explorer() as found:
        yield found


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": WIDE, "height": HIGH})
    watched = Watched(context)
    watched.page.set_default_timeout(120_000)  # SmolLM2 is loaded when it is first asked
    yield watched.page
    context.close()
    assert not watched.wrong


def opened(page: Page, address: str, name: str, **place: str) -> Page:
    model = {} if MODELS[name] is None else {"model": MODELS[name]}
    page.goto(f"{address}&{urlencode({'prompt': IOI, **model, **place})}")
    page.wait_for_selector(".why .which", state="attached")
    return page


def in_sight(page: Page, selector: str) -> dict[str, float]:
    """Its box, all of which lies in the window and in every pane around it."""
    one = page.locator(selector).first
    expect(one).to_be_visible()
    box: dict[str, float] = one.evaluate(
        """(el) => {
            const own = el.getBoundingClientRect();
            const seen = { left: 0, top: 0, right: innerWidth, bottom: innerHeight };
            for (let at = el.parentElement; at; at = at.parentElement) {
                if (getComputedStyle(at).overflow === "visible") continue;
                const box = at.getBoundingClientRect();
                seen.left = Math.max(seen.left, box.left); seen.right = Math.min(seen.right, box.right);
                seen.top = Math.max(seen.top, box.top); seen.bottom = Math.min(seen.bottom, box.bottom);
            }
            return { left: own.left - seen.left, top: own.top - seen.top, right: seen.right - own.right,
                bottom: seen.bottom - own.bottom };
        }"""
    )
    assert min(box.values()) >= -1, (selector, box)
    return box


def traced(page: Page, address: str, name: str) -> Page:
    opened(page, address, name, tab="circuit", traced="answer")
    page.wait_for_selector(".circuit-host ol.story")
    return page


def test_the_circuit_is_read_without_scrolling(page: Page, address: str, name: str, request: Any) -> None:
    traced(page, address, name)
    in_sight(page, ".edges th[data-key=influence]")
    in_sight(page, ".edges tbody td.number")
    expect(page.locator(".about .telling h3").first).to_have_text("Words that decide")
    in_sight(page, ".about .telling .heading")
    in_sight(page, ".about .words .word")
    in_sight(page, ".story .path")
    page.wait_for_selector("[data-fact=kept]")  # which takes a line of its own above the drawing
    in_sight(page, ".measuring-bar .faithful")
    in_sight(page, ".story .path")
    in_sight(page, ".circuit-host .legend")
    sizes = page.evaluate(LABELS)
    assert len(sizes) > 15 and min(size for _, size in sizes) >= 11
    model: Model = request.getfixturevalue(name)
    run = model.run(IOI)
    assert page.evaluate(WORDS) == [text.strip() for text in run.tokens]  # all of them, none is cut


def test_why_here_makes_room_and_comes_when_it_is_asked(page: Page, address: str) -> None:
    traced(page, address, "organism")
    why, asks = page.locator(".why-pane"), page.locator(".asks-why")
    expect(why).to_be_hidden()
    expect(asks).to_have_text("Why here?1.6")
    before = page.locator("svg.circuit").bounding_box()
    page.locator(".circuit-host .mark:has-text('2.5')").first.click()
    page.click(".circuit-host button:has-text('Why here?')")
    expect(why).to_be_visible()
    expect(page.locator(".why .headname")).to_have_text("2.5")
    in_sight(page, ".why .which")
    in_sight(page, ".edges th[data-key=influence]")
    after = page.locator("svg.circuit").bounding_box()
    assert before is not None and after is not None and after["width"] < before["width"] - 150
    page.reload()  # it is kept in the address
    expect(why).to_be_visible()
    expect(asks).to_have_attribute("aria-expanded", "true")
    asks.click()
    expect(why).to_be_hidden()
    page.click("[data-tab=pattern]")
    expect(why).to_be_visible()


def test_tracing_is_one_click_away(page: Page, address: str, name: str) -> None:
    opened(page, address, name)
    in_sight(page, ".answers-pane [data-action=trace]")
    in_sight(page, ".answers-pane .predictions .answer")
    in_sight(page, "svg.heads")


def test_the_first_head_moves_most_towards_the_answer(page: Page, address: str, name: str, request: Any) -> None:
    opened(page, address, name)
    at = {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}
    model: Model = request.getfixturevalue(name)
    run = model.run(IOI)
    end = len(run) - 1
    pushes = answer_pushes(run, end)
    layer, head, src = max((place for place in pushes if place[2] > 0), key=lambda place: pushes[place])
    assert (at["head"], at["dest"], at["src"]) == (f"{layer}.{head}", str(end), str(src))
    assert run.tokens[src].strip() == "Mary" == token_texts(model.tokenizer, [int(run.logits[-1].argmax())])[0].strip()


def test_pushes_are_what_heads_write_along_the_answers_logit(organism: Model) -> None:
    """Against the mean of all tokens, through the frozen final norm: a sum by hand for every head and source."""
    run = organism.run(IOI)
    end, answer = len(run) - 1, int(run.logits[-1].argmax())
    out, pushes = organism.head_out(), answer_pushes(run, end)
    along = (out.W_U[:, answer] - out.W_U.mean(1)).double() / float(run.final_scale[end])
    places = [(layer, head, src) for layer in range(4) for head in range(8) for src in range(end + 1)]
    assert sorted(pushes) == places
    for layer, head, src in places:
        write = written_by(run, Writer("head", layer, head, end, src), [end])[0]
        assert pushes[layer, head, src] == pytest.approx(float(write.double() @ along), abs=1e-4)
    assert max(pushes, key=lambda place: pushes[place]) == (1, 6, 2)


@pytest.mark.parametrize("width", [800, 1440])
def test_a_narrow_window_begins_the_story_on_the_first_screen(page: Page, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 1100})
    traced(page, address, "organism")
    page.wait_for_selector("[data-fact=kept]")
    in_sight(page, ".about .words .word")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert min(size for _, size in page.evaluate(LABELS)) >= 11
