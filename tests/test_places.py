"""Where do roles stand among tokens, with no tokenizer; what are tokens called; and whose circuits are these?"""

from pathlib import Path

import pytest

import keyhole
from conftest import tiny_model
from keyhole import KeyholeError, Model
from keyhole.figures.style import blank
from keyhole.models.tokens import spans_among
from keyhole.report import Picture, Report, Section, Table, as_html
from keyhole.store import model_of
from keyhole.tasks import examples
from keyhole.tasks.example import START, place_names, place_of

TASKS = ("ioi", "greater_than", "pronouns", "induction", "boxes", "lists")


@pytest.mark.parametrize("task", TASKS)
def test_roles_are_found_by_texts_alone(organism: Model, smollm2: Model, task: str) -> None:
    for model in (organism, smollm2):
        asked = examples(task, model, n=20, seed=1)
        for example, run in zip(asked, model.run_many([example.text for example in asked]), strict=True):
            assert example.places(run.tokens) == example.positions(run)


def test_what_no_token_has_whole_is_passed_over() -> None:
    text = "Zoë met Ann"
    assert spans_among(text, ["<s>", "Zo", "\ufffd", "\ufffd", " met", " Ann"])[-2:] == [(4, 7), (8, 11)]
    assert spans_among("a b a", ["b", "a"]) == [None, (0, 1)]  # nothing readable is skipped to find a later one
    assert spans_among("", ["<s>"]) == [None]


def test_tokens_are_called_by_role_and_distance() -> None:
    names = place_names({"S1": 2, "IO": 4, "S1+1": 3, "LONG": 2}, 6)
    assert names == (START, f"{START}+1", "S1", "S1+1", "IO", "IO+1")
    assert [place_of(name, names) for name in names] == list(range(6)) and place_of("END", names) is None
    assert place_names({"IO": 0}, 2) == ("IO", "IO+1") and place_names({}, 1) == (START,)


def test_a_store_knows_its_model(organism: Model, tmp_path: Path) -> None:
    store = keyhole.bulk("ioi", organism, n=2, out=tmp_path / "few.store")
    assert model_of(store).fingerprint() == organism.fingerprint() and model_of(store, organism) is organism
    with pytest.raises(KeyholeError, match=r"was made with organism, and .* has other weights"):
        model_of(store, tiny_model("gpt2"))
    with pytest.raises(KeyholeError, match="nowhere"):
        model_of(store, "nowhere.gguf")


def test_a_page_escapes_and_loads_nothing() -> None:
    evil = "<img src=x onerror=alert(1)></script>"
    table = Table(["a", ">b"], [[evil, 1234.5], [None, 12345]])
    section = Section(evil, [evil, Picture(lambda: blank(1, 1), evil), table])
    made = as_html(Report(evil, f"one\n\n{evil}", [section]))
    assert evil not in made and made.count("&lt;img src=x onerror=alert(1)&gt;&lt;/script&gt;") == 8
    assert "http" not in made and "<script" not in made and made.count("<img ") == 1
    assert "1234.500" in made and "12,345" in made and "—" in made
    with pytest.raises(KeyholeError, match="rows of other lengths"):
        Section("s", [Table(["a"], [["1", "2"]])])
