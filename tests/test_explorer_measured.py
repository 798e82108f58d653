"""Does the explorer show what was measured? Words, faithfulness, effects and what suffices, as the library has them."""

import re
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from chromium import Watched, chromium
from held import Held
from keyhole import Model
from keyhole.circuits.circuit import Circuit
from keyhole.models.tokens import token_id
from keyhole.requests.kept import Given, Kept
from keyhole.tasks.catalogue import like
from keyhole.web.server.circuits import example_of
from serving import PROMPT, Served, serving, until

pytestmark = pytest.mark.xdist_group("explorer")
OTHER = "When Albert and Gloria went to the store, Gloria gave a drink to"
UNTRUE = re.compile("not measured|was cancelled|has no story|Nothing is traced yet|kept")
SUFFICIENT = ".measuring-bar [data-action=sufficient]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own; whatever goes wrong in it fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Watched(context)
    yield found.page
    context.close()
    assert not found.wrong


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


@pytest.fixture(scope="module")
def circuit(organism: Model) -> Circuit:
    return organism.run(PROMPT).trace("Mary", against="John")


@pytest.fixture(scope="module")
def go(served: Served, organism: Model) -> Callable[..., None]:
    """Opens the circuit's tab with the question why Mary, and not John."""
    answer = {"target": token_id(organism, "Mary"), "against": token_id(organism, "John")}

    def opens(page: Page, **more: str) -> None:
        page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT, 'tab': 'circuit', **answer, **more})}")

    return opens


def where(page: Page) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def read(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("%", "").replace("+", "").replace(",", ""))


def fact(page: Page, name: str) -> Locator:
    return page.locator(f".measuring-bar [data-fact='{name}'] .value")


def cell(row: Locator, key: str) -> str:
    """What a row of the table has under a heading."""
    keys = row.page.locator(".edges th").evaluate_all("(all) => all.map((one) => one.dataset.key)")
    return row.locator("td").nth(keys.index(key)).inner_text()


def test_words_stand_first_by_effect_and_light_their_tokens(
    page: Page, go: Callable[..., None], circuit: Circuit
) -> None:
    go(page, traced="answer")
    words = page.locator(".about .words .word")
    expect(words.first).to_be_visible()
    decisive = circuit.story().decisive
    assert words.count() == len(decisive)
    for word, shown in zip(decisive, words.all(), strict=True):
        assert shown.locator(".what").inner_text().startswith(f"{word.tokens[0]}:")
        assert read(shown.locator(".number").inner_text()) == pytest.approx(word.effect, abs=0.006)
        assert bool(word.flips) == ("other answer" in shown.inner_text())
        assert shown.locator(".bar").count() == (not word.minor)
        assert shown.locator(".fill.less").count() == (word.effect < 0 and not word.minor)
    lit = page.locator(".axes .token.lit")
    expect(lit).to_have_count(0)
    words.nth(1).hover()
    expect(lit).to_have_text(re.compile(r"^(token 2: .*)?2Mary$"))
    expect(page.locator(".circuit-host .mark.embedding.lit")).not_to_have_count(0)
    before = page.locator(".circuit-host .words [data-token='4']")  # no node of the circuit begins there
    before.click()
    expect(before).to_have_attribute("aria-pressed", "true")
    page.mouse.move(5, 5)
    expect(lit).to_have_text(re.compile("4John$"))
    before.click()
    page.mouse.move(5, 5)
    expect(lit).to_have_count(0)


def test_paths_stand_under_what_they_do(page: Page, go: Callable[..., None], organism: Model, served: Served) -> None:
    page.goto(f"{served.door.address}&{urlencode({'prompt': PROMPT, 'tab': 'circuit', 'traced': 'answer'})}")
    paths = page.locator(".about .story .path")
    expect(paths.first).to_be_visible()
    told = organism.run(PROMPT).trace().story()
    assert paths.count() == len(told.paths)
    for path, shown in zip(told.paths, paths.all(), strict=True):
        assert read(shown.locator("b").inner_text()) == pytest.approx(100 * path.share, abs=0.51)
        assert path.effect is not None
        assert read(shown.locator(".effect").inner_text()) == pytest.approx(path.effect, abs=0.006)
    headings = page.locator(".about .telling h3").all_inner_texts()
    assert headings[0] == "Words that decide" and "Paths that do not matter to it alone" in headings
    assert told.baseline in page.locator(".about .telling .heading").nth(1).inner_text()
    assert "of the answer's gap to the baseline remains, without them" in page.locator(".telling").inner_text()


def test_faithfulness_is_measured_after_a_trace(page: Page, go: Callable[..., None], circuit: Circuit) -> None:
    go(page, traced="answer")
    expect(fact(page, "kept")).to_be_visible()
    measured = circuit.effects(what=("words", "faithfulness")).measured
    assert measured is not None and measured.faithfulness is not None
    found = measured.faithfulness
    for name, value in (("kept", found.kept), ("cut", found.cut)):
        assert read(fact(page, name).inner_text()) == pytest.approx(100 * value, abs=0.51)
    assert fact(page, "rank").inner_text() == str(found.rank)
    assert fact(page, "size").inner_text() == f"{found.edges} of {found.of:,} edges"
    assert measured.baseline in page.locator(".measuring-bar .faithful").inner_text()
    assert page.locator(".edges th[data-key=effect]").count() == 0  # nobody has asked for those


def test_effects_fill_tables_and_details(page: Page, go: Callable[..., None], circuit: Circuit) -> None:
    go(page, traced="answer")
    expect(fact(page, "kept")).to_be_visible()
    page.click(".measuring-bar [data-action=baseline]")
    page.click(".baseline [data-choice=words]")
    page.click(".measuring-bar [data-action=effects]")
    expect(page.locator(".edges th[data-key=effect]")).to_be_visible()
    measured = circuit.effects().measured
    assert measured is not None
    assert measured.baseline in (page.locator("th[data-key=effect]").get_attribute("title") or "")
    for row in page.locator(".edges tbody tr").all()[:12]:
        edge = int(row.get_attribute("data-edge") or -1)
        effect, share = measured.edges[edge], measured.edge_shares[edge]
        assert effect is not None and share is not None
        assert read(cell(row, "effect")) == pytest.approx(effect, abs=0.006)
        assert read(cell(row, "share")) == pytest.approx(100 * share / measured.gap, abs=0.51)
    expect(page.locator(".measuring-bar [data-action=effects]")).to_have_count(0)  # they are there
    page.locator(".edges tbody tr").first.click()
    expect(page.locator(".detail")).to_contain_text(
        f"Effect: what the logit difference loses with it at {measured.baseline}."
    )
    node = next(i for i, one in enumerate(circuit.nodes) if (one.kind, one.layer) == ("mlp", 3))
    page.click(f".circuit-host [data-mark=n{node}]")
    facts = dict(
        zip(page.locator(".detail dt").all_inner_texts(), page.locator(".detail dd").all_inner_texts(), strict=True)
    )
    effect = measured.nodes[node]
    assert effect is not None and read(facts["effect"]) == pytest.approx(effect, abs=0.006)
    assert where(page)["effects"] == "1" and where(page)["baseline"] == "words"
    page.reload()  # they are asked for again
    expect(page.locator(".edges th[data-key=effect]")).to_be_visible()


def test_the_smallest_circuit_that_suffices(page: Page, go: Callable[..., None], organism: Model) -> None:
    go(page)
    expect(page.locator(".measuring-bar [data-action=baseline]")).to_contain_text("prompts of its task")
    page.click(SUFFICIENT)
    expect(fact(page, "kept")).to_be_visible()
    example = example_of(Kept(Given()), PROMPT)
    assert example is not None and example.answer == "Mary"
    others = like(example, organism)
    own = organism.run(PROMPT).sufficient("Mary", against="John", like=others)
    assert own.measured is not None and own.measured.faithfulness is not None
    assert read(fact(page, "kept").inner_text()) == pytest.approx(100 * own.measured.faithfulness.kept, abs=0.51)
    expect(page.locator(".measuring-bar [data-fact='kept on 8 other prompts']")).to_be_visible()
    assert own.measured.baseline in page.locator(".measuring-bar .faithful").inner_text()
    parameters = own.parameters.record()
    parts = page.locator(".edges tbody tr").evaluate_all("(all) => all.map((one) => one.innerText)")
    assert len(parts) == len(own.edges)
    assert sum("suffices" in part for part in parts) == parameters["found"]
    assert sum("why it looks there" in part for part in parts) == len(own.edges) - parameters["found"]
    expect(page.locator(".links .edge.attached")).not_to_have_count(0)
    page.click(".tools .fold.signals")
    expect(page.locator(".links .edge.attached")).to_have_count(0)
    expect(page.locator(".edges tbody tr")).to_have_count(parameters["found"])
    heard = page.locator(".about").inner_text()
    assert "Tokens by effect" in heard and "has no story" not in heard and "10:John" in heard
    assert where(page)["traced"] == "sufficient" and where(page)["baseline"] == "task"
    page.reload()
    expect(fact(page, "kept")).to_be_visible()
    page.click(".measuring-bar [data-action=traced]")
    expect(page.locator(".about .words .word").first).to_be_visible()
    assert where(page)["traced"] == "answer"


def test_my_own_prompts_and_both_signs(page: Page, go: Callable[..., None], organism: Model, circuit: Circuit) -> None:
    example = example_of(Kept(Given()), PROMPT)
    assert example is not None
    lines = [one.text for one in like(example, organism, n=9, seed=1)]
    go(page)
    page.click(".measuring-bar [data-action=baseline]")
    page.click(".baseline [data-choice=like]")
    page.fill(".baseline textarea", "\n".join([*lines, ""]))
    page.check(".measuring-bar [name=signs]")
    page.click(SUFFICIENT)
    expect(page.locator(".measuring-bar .faithful")).to_contain_text("the mean of 9 prompts like this one")
    own = organism.run(PROMPT).sufficient("Mary", against="John", like=lines, both_signs=True)
    assert page.locator(".edges tbody tr").count() == len(own.edges)
    shares = page.locator(".edges tbody tr:has-text('suffices') td:nth-child(2)").all_inner_texts()
    found = [edge.weight for edge in own.edges[: own.parameters.record()["found"]]]
    assert sorted(map(read, shares)) == pytest.approx(sorted(100 * weight for weight in found), abs=0.51)
    told = page.locator(".about").inner_text()
    assert own.parameters.record()["both_signs"] and "Edges with a negative share hold the answer back." in told
    assert where(page)["like"].split("\n")[:9] == lines and where(page)["signs"] == "both"


def test_refusals_are_sentences_and_the_form_is_still_there(page: Page, go: Callable[..., None]) -> None:
    go(page, traced="sufficient", baseline="like", like=f"{OTHER}\nA cat")
    wrong = page.locator(".view.circuit .state .error")
    expect(wrong).to_contain_text("prompts like this one have as many tokens, 15: 'A cat' has 3")
    page.click(".measuring-bar [data-action=baseline]")
    expect(page.locator(".baseline textarea")).to_have_value(f"{OTHER}\nA cat")
    page.click(".baseline [data-choice=counterfactual]")
    page.fill(".baseline [name=counterfactual]", PROMPT)
    page.click(SUFFICIENT)
    expect(wrong).to_contain_text("the counterfactual prompt is this prompt itself")
    page.fill(".baseline [name=counterfactual]", OTHER)
    page.click(SUFFICIENT)
    expect(page.locator(".measuring-bar .faithful")).to_contain_text(f"the prompt '{OTHER}'")
    assert where(page)["counterfactual"] == OTHER and "like" not in where(page)


def test_another_prompt_has_none_of_the_last_ones_prompts(page: Page, go: Callable[..., None]) -> None:
    go(page, traced="sufficient", baseline="counterfactual", counterfactual=OTHER)
    expect(fact(page, "kept")).to_be_visible()
    page.fill("textarea[aria-label=Prompt]", OTHER)
    page.press("textarea[aria-label=Prompt]", "Enter")
    expect(page.locator(".view.circuit .state")).to_contain_text("Nothing is traced yet")
    assert not {"baseline", "counterfactual", "traced"} & set(where(page))
    expect(page.locator(".measuring-bar [data-action=baseline]")).to_contain_text("other words")
    expect(fact(page, "kept")).to_have_count(0)


@pytest.mark.parametrize(
    ("function", "slot", "cancelled"),
    [
        ("faithfulness", "faithfulness", "The measurement of faithfulness was cancelled."),
        ("effects", "parts", "The measurement of effects was cancelled."),
    ],
)
def test_measuring_is_said_to_be_under_way_and_can_be_stopped(
    page: Page, go: Callable[..., None], held: Held, served: Served, function: str, slot: str, cancelled: str
) -> None:
    held.hold("circuits", function)
    go(page, traced="answer")
    expect(page.locator("ol.story > li").first).to_be_visible()
    if slot == "parts":
        expect(fact(page, "kept")).to_be_visible()
        page.click(".measuring-bar [data-action=effects]")
    bar = page.locator(f".measuring-bar [data-waiting={slot}]")
    expect(bar).to_contain_text(re.compile("Measuring|Waiting"))
    assert not UNTRUE.search(page.locator(".measuring-bar").inner_text())
    assert page.locator(".edges th[data-key=effect]").count() == 0
    bar.locator("[data-action=cancel]").click()
    expect(page.locator(".measuring-bar")).to_contain_text(cancelled)
    until(lambda: not served.jobs.busy)  # the work itself has ended
    assert fact(page, "kept").count() == (slot == "parts")  # what was measured before is still true
    held.let_go(function)
    page.click(f".measuring-bar [data-action={function}]")
    expect(fact(page, "kept")).to_be_visible()
    assert page.locator(".measuring-bar [role=alert]").count() == 0


def test_a_search_in_the_middle_of_which_it_is_stopped(
    page: Page, go: Callable[..., None], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    sufficient = import_module("keyhole.faithfulness.sufficient")
    gate, whole = threading.Event(), sufficient.search_together

    def waits(searches: Any, progress: Callable[[int, int], None]) -> Any:
        while not gate.wait(0.01):
            progress(1, 1000)  # where a search can be stopped
        return whole(searches, progress)

    monkeypatch.setattr(sufficient, "search_together", waits)
    served.kept.circuits.kept.clear()
    go(page)
    page.click(SUFFICIENT)
    bar = page.locator(".view.circuit .state [data-waiting=circuit]")
    expect(bar).to_contain_text("Searching for the smallest circuit")
    expect(bar.locator("progress")).to_have_attribute("value", re.compile("2"))
    expect(page.locator(".measuring-bar")).to_be_hidden()
    assert not UNTRUE.search(page.locator(".view.circuit").inner_text())
    bar.locator("[data-action=cancel]").click()
    expect(page.locator(".view.circuit .state")).to_contain_text("The search was cancelled.")
    until(lambda: not served.jobs.busy)
    gate.set()
    page.click(SUFFICIENT)
    expect(fact(page, "kept")).to_be_visible()


def test_another_prompt_in_the_middle_of_a_measurement_stops_it(
    page: Page, go: Callable[..., None], held: Held, served: Served
) -> None:
    held.hold("circuits", "faithfulness")
    go(page, traced="answer")
    expect(page.locator(".measuring-bar [data-waiting=faithfulness]")).to_be_visible()
    page.fill("textarea[aria-label=Prompt]", OTHER)
    page.press("textarea[aria-label=Prompt]", "Enter")
    expect(page.locator(".tokens .chip").nth(2)).to_have_text("Albert")
    until(lambda: not served.jobs.busy)
    expect(page.locator(".measuring-bar [data-waiting]")).to_have_count(0)
    assert not page.locator(".measuring-bar [role=alert]").count()
    held.let_go("faithfulness")
    page.click(".view.circuit .state [data-action=trace]")
    expect(fact(page, "kept")).to_be_visible()


def test_what_one_firing_moves_has_no_answer_to_keep(page: Page, go: Callable[..., None], served: Served) -> None:
    go(page, traced="1.6.14.2")
    expect(page.locator(".circuit-host svg.circuit .mark").first).to_be_visible()
    until(lambda: not served.jobs.busy)
    assert page.locator(".measuring-bar").inner_text().strip() == ""


def test_the_example_is_an_example_of_its_task() -> None:
    example = example_of(Kept(Given()), PROMPT)
    assert example is not None and example.task == "ioi" and example.against == ("John",)
    assert example_of(Kept(Given()), OTHER) is None and example_of(Kept(Given()), [1, 2]) is None
