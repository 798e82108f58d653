"""Is every sentence of the explorer's page true at its moment? Work is held half-way, and prompts change meanwhile."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

import keyhole
from chromium import Watched, chromium
from conftest import SMOLLM2
from explorers import explorer
from held import Held
from keyhole.faithfulness import removals
from keyhole.intervene import rerun
from keyhole.models import load
from serving import PROMPT, Served, serving, until

pytestmark = pytest.mark.xdist_group("explorer")
OTHER = "When Albert and Gloria went to the store, Gloria gave a drink to"
SIZES = [(1440, 900), (800, 900)]
UNTRUE = re.compile("has no story|Nothing is traced yet|There is no circuit|There is no run|Opening|Pick a head")
# Every line that the page shows at any moment, as often as it is painted.
LISTEN = """() => {
    window.lines = new Set();
    let due = false;
    const look = () => {
        due = false;
        for (const line of document.body.innerText.split("\\n")) window.lines.add(line);
    };
    new MutationObserver(() => { if (!due) requestAnimationFrame(look); due = true; }).observe(
        document.body, { childList: true, subtree: true, characterData: true });
    look();
}"""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[[tuple[int, int]], Page]]:
    """Pages of a size; whatever went wrong in one fails the test."""
    found: list[Watched] = []

    def open_page(size: tuple[int, int]) -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]})
        found.append(Watched(context))
        found[-1].page.set_default_timeout(60_000)
        return found[-1].page

    yield open_page
    for one in found:
        one.page.context.close()
        assert not one.wrong


def where(page: Page) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def ask(page: Page, prompt: str) -> None:
    page.fill("textarea[aria-label=Prompt]", prompt)
    page.press("textarea[aria-label=Prompt]", "Enter")


def untrue(page: Page) -> list[str]:
    return UNTRUE.findall(page.locator("body").inner_text())


@pytest.mark.parametrize("size", SIZES)
def test_work_under_way_is_said_to_be_under_way(
    opened: Callable[..., Page], served: Served, held: Held, size: tuple[int, int]
) -> None:
    held.hold("prompt", "run")
    held.hold("stores", "trace")
    held.hold("stores", "story")
    page = opened(size)
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT, 'tab': 'circuit', 'traced': 'answer'})}")
    for function, place, sentence in (
        ("run", ".view.circuit .state [data-waiting=run]", re.compile("Running the model|Loading")),
        ("trace", ".view.circuit .state [data-waiting=circuit]", "Tracing"),
        ("story", ".about [data-waiting=told]", "Making the story"),
    ):
        expect(page.locator(place)).to_contain_text(sentence)
        expect(page.locator(f"{place} progress")).to_be_visible()
        assert not untrue(page)
        held.let_go(function)
    expect(page.locator("ol.story > li").first).to_be_visible()
    assert not untrue(page)


@pytest.mark.parametrize("size", SIZES)
def test_another_prompt_in_the_middle_of_work_finds_nothing_of_the_last(
    opened: Callable[..., Page], served: Served, held: Held, size: tuple[int, int]
) -> None:
    held.hold("stores", "story")
    held.hold("stores", "verify")
    page = opened(size)
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT, 'tab': 'circuit', 'traced': 'answer'})}")
    edge = page.locator(".circuit-host .edges tbody tr:has(.side.src)").first
    edge.click()
    expect(page.locator(".about > header h2")).to_have_text("Edge")
    page.click(".circuit-host button:has-text('Remove and measure')")
    expect(page.locator(".about [data-waiting=edge]")).to_contain_text("Waiting for 1 request")  # the story
    assert "edge" in where(page)["view"]
    page.evaluate(LISTEN)
    ask(page, OTHER)
    expect(page.locator(".tokens .chip").nth(2)).to_have_text("Albert")
    until(lambda: not served.jobs.busy)  # what was under way for the last prompt has been stopped
    expect(page.locator(".view.circuit .state")).to_contain_text("Nothing is traced yet")
    assert not {"view", "traced", "target", "verify"} & set(where(page))
    page.click(".view.circuit .state [data-action=trace]")
    expect(page.locator(".circuit-host svg.circuit .mark").first).to_be_visible()
    expect(page.locator(".about > header h2")).to_have_text("Story")
    expect(page.locator(".circuit-host tr.picked, .circuit-host .mark.pinned")).to_have_count(0)
    held.let_go("story")
    held.let_go("verify")
    expect(page.locator("ol.story > li").first).to_be_visible()
    assert not [line for line in page.evaluate("[...window.lines]") if "has no story" in line or "Measured" in line]
    page.go_back()
    page.go_back()  # what was pinned belongs to its own circuit, and is there again
    expect(page.locator(".tokens .chip").nth(2)).to_have_text("Mary")
    expect(page.locator(".about > header h2")).to_have_text("Edge")
    expect(page.locator(".circuit-host tr.picked")).to_have_count(1)


@pytest.mark.parametrize("size", SIZES)
def test_verifications_effects_and_errors_go_with_their_prompt(
    opened: Callable[..., Page], served: Served, size: tuple[int, int]
) -> None:
    place = {"prompt": PROMPT, "head": "1.6", "dest": "14", "src": "2", "traced": "answer"}
    page = opened(size)
    page.goto(f"{served.door.address}&{urlencode(place)}")
    page.click(".half.dest .signal.all [data-does=remove]")
    expect(page.locator(".effect .numbers")).to_be_visible()
    page.click(".predictions li:nth-child(2) .vs")  # it was measured of another question
    expect(page.locator(".effect")).to_have_count(0)
    page.click("[data-tab=verification]")
    page.click(".view.verification [data-action=trace]")
    page.click(".view.verification [data-choice=local]")
    expect(page.locator(".view.verification [data-met]")).to_be_visible()
    assert where(page)["verify"] == "local"
    ask(page, "Mary xyzzy")
    expect(page.locator(".said .error")).to_contain_text("does not know 'xyzzy'")
    expect(page.locator(".view.verification")).to_contain_text("There is no run of this prompt")
    expect(page.locator(".view.verification [data-met]")).to_have_count(0)
    ask(page, OTHER)
    expect(page.locator(".tokens .chip").nth(2)).to_have_text("Albert")
    expect(page.locator(".view.verification [data-action=trace]")).to_be_visible()
    assert page.locator(".error:visible").count() == 0 and not {"verify", "target"} & set(where(page))
    page.click(".view.verification [data-action=trace]")
    expect(page.locator(".view.verification [data-action=verify]")).to_be_visible()  # and nothing verifies it unasked
    until(lambda: not served.jobs.busy)
    expect(page.locator(".view.verification [data-met]")).to_have_count(0)


def test_another_head_s_attention_does_not_stand_under_this_one_s_name(
    opened: Callable[..., Page], served: Served, held: Held
) -> None:
    page = opened(SIZES[0])
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT, 'head': '1.6', 'dest': '14', 'src': '2'})}")
    canvas = page.locator(".view.pattern canvas")
    expect(canvas).to_be_visible()
    held.hold("prompt", "pattern")
    page.click("svg.heads [data-layer='3'][data-head='1']")
    expect(page.locator(".middle h2")).to_have_text("Head 3.1")
    expect(page.locator(".view.pattern .told")).to_have_text("Reading the attention …")
    expect(canvas).to_be_hidden()
    held.let_go("pattern")
    expect(canvas).to_be_visible()


def test_a_verification_of_another_mode_is_not_shown_under_the_new_one(
    opened: Callable[..., Page], served: Served, held: Held
) -> None:
    place = {"prompt": PROMPT, "tab": "verification", "traced": "answer", "verify": "exact"}
    page = opened(SIZES[0])
    page.goto(f"{served.door.address}&{urlencode(place)}")
    expect(page.locator(".view.verification [data-met]")).to_be_visible()
    held.hold("stores", "verify")
    page.click(".view.verification [data-choice=global]")
    expect(page.locator("[data-waiting=verification]").first).to_be_attached()
    expect(page.locator(".view.verification [data-met]")).to_have_count(0)
    held.let_go("verify")
    expect(page.locator(".view.verification h3[data-met]")).to_contain_text("nothing is promised")


def test_a_verification_says_how_long_it_takes_and_can_be_cancelled(
    opened: Callable[..., Page], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, whole = list[float](), removals.rerun

    def slowly(*given: Any, **more: Any) -> Any:
        passes.append(time.monotonic())
        time.sleep(0.1)
        return whole(*given, **more)

    monkeypatch.setattr(rerun, "_BATCH_TOKENS", 60)  # a removal and its controls: more than sixty batches
    monkeypatch.setattr(removals, "rerun", slowly)
    place = {"prompt": PROMPT, "tab": "verification", "traced": "answer", "verify": "exact"}
    page = opened(SIZES[0])
    page.goto(f"{served.door.address}&{urlencode(place)}")
    waiting = page.locator(".view.verification [data-waiting=verification]")
    expect(waiting).to_contain_text(re.compile(r"\d+ of \d\d, about \d+ s left"))
    waiting.locator("[data-action=cancel]").click()
    expect(page.locator(".view.verification .error")).to_have_text("Cancelled.")
    until(lambda: not served.jobs.busy, 5)
    done = len(passes)
    assert 0 < done < 60
    time.sleep(0.4)
    assert len(passes) == done, "the work goes on"
    expect(page.locator(".view.verification [data-action=verify]")).to_be_visible()


@pytest.mark.parametrize("part", ["", "families", "sinks"])
@pytest.mark.parametrize("size", SIZES)
def test_without_a_store_the_page_says_so(
    opened: Callable[..., Page], served: Served, size: tuple[int, int], part: str
) -> None:
    page = opened(size)
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT, 'tab': 'store', 'part': part})}")
    expect(page.locator(".store-body")).to_contain_text("There is no store here")
    expect(page.locator(".store-body")).to_contain_text("keyhole explore --store")
    page.wait_for_timeout(300)
    assert not untrue(page)


def test_a_model_that_is_being_loaded_can_be_left(
    opened: Callable[..., Page], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, goes_on = opened(SIZES[0]), threading.Event()
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT})}")
    expect(page.locator(".why .which")).to_be_visible()

    def slowly(source: Any) -> keyhole.Model:
        assert goes_on.wait(60)
        raise keyhole.KeyholeError("nobody waits for this")

    monkeypatch.setattr(load, "load", slowly)
    page.fill("input.model", "slow.gguf")
    page.press("input.model", "Enter")
    expect(page.locator(".said [data-waiting=model]")).to_contain_text("Loading slow.gguf")
    page.click(".said [data-waiting=model] [data-action=cancel]")
    expect(page.locator(".said .error")).to_have_text("This was cancelled.")
    until(lambda: not served.jobs.busy)
    page.fill("input.model", "organism")
    ask(page, OTHER)
    expect(page.locator(".tokens .chip").nth(2)).to_have_text("Albert")
    expect(page.locator(".why .which")).to_be_visible()
    goes_on.set()


def test_the_readme_s_question_takes_two_clicks(
    opened: Callable[..., Page], served: Served, organism: keyhole.Model
) -> None:
    page = opened(SIZES[0])
    page.goto(served.door.address)
    page.click("[data-action=example]")
    expect(page.locator(".answers-pane [data-action=trace]")).to_have_text("Trace Mary against John")
    page.click(".answers-pane [data-action=trace]")
    circuit = organism.run(PROMPT).trace("Mary", against="John")
    expect(page.locator(".circuit-host .tools .amount")).to_contain_text(f"of {len(circuit.nodes)} nodes")
    target, against = circuit.parameters.target_ids, circuit.parameters.against_ids
    assert (where(page)["target"], where(page)["against"]) == (str(target[0]), str(against[0]))
    expect(page.locator("[data-action=example]")).to_be_hidden()  # it is asked


def test_any_token_can_be_the_answer(opened: Callable[..., Page], served: Served, organism: keyhole.Model) -> None:
    page, run = opened(SIZES[0]), organism.run(PROMPT)
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT})}")
    expect(page.locator(".why .which")).to_be_visible()
    assert page.locator(".predictions li:has-text('store')").count() == 0
    page.fill("[aria-label=against]", "store")
    page.click(".answers-pane [data-action=trace]")  # the click leaves the field: the word is part of what is traced
    circuit = run.trace(against="store")
    amount = page.locator(".circuit-host .tools .amount")
    expect(amount).to_contain_text(f"of {len(circuit.nodes)} nodes")
    token = str(circuit.parameters.against_ids[0])
    assert (where(page)["against"], where(page)["traced"]) == (token, "answer")
    page.reload()
    expect(amount).to_contain_text(f"of {len(circuit.nodes)} nodes")
    page.click("[data-tab=pattern]")
    expect(page.locator("[aria-label=against]")).to_have_value("store")
    expect(page.locator(f".predictions li[data-id='{token}'].against")).to_be_visible()
    page.fill("[aria-label=against]", "Mary")
    page.press("[aria-label=against]", "Enter")
    expect(page.locator(".answer-fields .error")).to_contain_text("Mary is the answer itself")
    page.fill("[aria-label=against]", "")
    page.press("[aria-label=against]", "Enter")
    page.fill("[aria-label=Answer]", "drink")
    page.press("[aria-label=Answer]", "Enter")
    expect(page.locator(".answers-pane [data-action=trace]")).to_have_text("Trace drink")
    assert where(page)["target"] == str(organism.tokenizer("drink", add_special_tokens=False).input_ids[0])
    page.fill("[aria-label=Answer]", "Mary John")
    page.press("[aria-label=Answer]", "Enter")
    expect(page.locator(".answer-fields .error")).to_contain_text(
        "'Mary John' is 2 tokens here, 'Mary' + 'John', and the explorer asks for one token: for its first, 'Mary' "
    )
    page.click("[data-action=instead]")
    expect(page.locator(".answers-pane [data-action=trace]")).to_have_text("Trace Mary")
    expect(page.locator(".answer-fields .error")).to_be_hidden()
    page.fill("[aria-label=Answer]", "xyzzy")
    page.press("[aria-label=Answer]", "Enter")
    expect(page.locator(".answer-fields .error")).to_contain_text("does not know 'xyzzy'")
    ask(page, OTHER)
    expect(page.locator(".why .which")).to_be_visible()
    expect(page.locator("[aria-label=Answer]")).to_have_value("")
    expect(page.locator(".answer-fields .error")).to_be_hidden()
    assert "target" not in where(page)


def test_a_contrast_beside_a_plain_answer_is_said_to_be_one(opened: Callable[..., Page], served: Served) -> None:
    page = opened(SIZES[0])
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT})}")
    page.click("[data-action=example]")
    expect(page.locator(".predictions .against")).to_be_visible()
    page.click("[data-tab=compare]")
    page.fill("[aria-label='The other prompt']", OTHER)
    page.click("[data-action=compare]")
    note = page.locator(".terms .note", has_text="shares of the one are not shares of the other")
    expect(note).to_contain_text("Mary against John, a difference of logits, and the other Albert alone")
    expect(page.locator("[data-side=a] h4")).to_have_text(
        "Left: why “Mary” and not “John”?".replace("“", "").replace("”", "")
    )
    page.fill("[aria-label='Its answer']", "Albert")
    page.fill("[aria-label='Against']", "Gloria")
    page.press("[aria-label='Against']", "Enter")
    expect(page.locator("[data-side=b] h4")).to_contain_text("Albert and not Gloria")
    expect(note).to_have_count(0)
    assert (where(page)["b.target"], where(page)["b.against"]) == ("Albert", "Gloria")


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_smollm2_says_nothing_false_at_any_moment(browser: Browser, size: tuple[int, int]) -> None:
    other = "After Anna and Peter sat down at the table, Peter handed a book to"
    with explorer(str(SMOLLM2)) as address:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]})
        page = Watched(context).page
        page.set_default_timeout(300_000)
        expect.set_options(timeout=300_000)
        page.goto(address)
        page.evaluate(LISTEN)
        expect(page.locator(".said [data-waiting=run] progress")).to_be_visible()  # while the model is loaded
        expect(page.locator(".why .which")).to_be_visible()
        page.click("[data-action=example]")
        expect(page.locator(".answers-pane [data-action=trace]")).to_have_text("Trace Mary against John")
        page.click(".answers-pane [data-action=trace]")
        expect(page.locator(".view.circuit .state [data-waiting=circuit] progress")).to_be_visible()
        expect(page.locator(".circuit-host svg.circuit .mark").first).to_be_visible()
        expect(page.locator(".about [data-waiting=told] progress")).to_be_visible()  # the story is being made
        page.locator(".circuit-host .edges tbody tr").nth(3).click()
        expect(page.locator(".about > header h2")).to_have_text("Edge")
        ask(page, other)  # in the middle of it
        expect(page.locator(".tokens .chip").nth(1)).to_have_text("Anna")
        page.click(".view.circuit .state [data-action=trace]")
        expect(page.locator(".circuit-host svg.circuit .mark").first).to_be_visible()
        expect(page.locator(".circuit-host tr.picked, .circuit-host .mark.pinned")).to_have_count(0)
        expect(page.locator("ol.story > li").first).to_be_visible()
        page.click("[data-tab=store]")
        expect(page.locator(".store-body")).to_contain_text("There is no store here")
        lines = page.evaluate("[...window.lines]")
        assert any("Making the story" in line or "Measuring the story" in line for line in lines)
        assert not [line for line in lines if "has no story" in line or line.startswith(("Opening", "There is no run"))]
        page.click("[data-tab=pattern]")
        page.fill("[aria-label=Answer]", "Bartholomew")
        page.press("[aria-label=Answer]", "Enter")
        expect(page.locator(".answer-fields .error")).to_contain_text("ask for its first")
        page.click("[data-action=instead]")
        expect(page.locator(".answer-fields .error")).to_be_hidden()
        context.close()
