"""What stays of a circuit: counted as a slow look counts; changes change what they say, and nothing else."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import keyhole
from commands import keyhole as typed
from keyhole import Circuit, KeyholeError, Model
from keyhole.models.tokens import one_token_words
from keyhole.settings.tracing import Probability, Through, TraceSettings
from keyhole.studies.stability.stability import (
    Stability,
    Stays,
    Traced,
    _kinds,
    floors,
    in_common,
    jaccard_of_pairs,
    stability,
    varied,
)
from keyhole.studies.stability.variations import (
    Refused,
    Variation,
    renamed,
    retrace,
    reworded,
    rounded,
    scaled_tau,
    settings_of,
    usual,
)
from keyhole.tasks import greater_than, ioi, published_ioi
from keyhole.tasks.words import NAMES


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, organism: Model) -> keyhole.store.Store:
    path = tmp_path_factory.mktemp("stability") / "ioi.store"
    return keyhole.bulk("ioi", organism, n=12, out=path, choices={"wordings": [0, 2]})


@pytest.fixture(scope="module")
def asked(store: keyhole.store.Store) -> list[Traced]:
    return [(one.example, one.circuit) for one in store if one.circuit is not None][:3]


# -- measures --------------------------------------------------------------------------------------------------------


def slowly(one: Circuit, other: Circuit, measure: str) -> float:
    """Sets as Python has them."""

    def terms(circuit: Circuit) -> dict[tuple, float]:
        found: dict[tuple, float] = {}
        names = [(n.kind, n.layer, n.head) for n in circuit.nodes]
        counted = ("head", "mlp", "mixer")
        if measure in ("heads", "influence"):
            for name, share in zip(names, circuit.influence, strict=True):
                if name[0] in counted:
                    found[name] = found.get(name, 0) + share if measure == "influence" else 1
            return found
        for edge in circuit.edges:
            if names[edge.sender][0] in counted:
                for channel in (edge.channels or (None,)) if measure == "channels" else (None,):
                    found[names[edge.sender], names[edge.receiver], edge.side, channel] = 1
        return found

    a, b = terms(one), terms(other)
    keys = a.keys() | b.keys()
    return sum(min(a.get(k, 0), b.get(k, 0)) for k in keys) / sum(max(a.get(k, 0), b.get(k, 0)) for k in keys)


def test_pairs_are_compared_as_a_slow_look_does(asked: list[Traced]) -> None:
    pairs = [(asked[0], asked[1]), (asked[1], asked[2]), (asked[2], asked[2])]
    found = in_common(pairs)
    assert list(found) == ["heads", "edges", "channels", "influence"]
    for measure, values in found.items():
        assert values == pytest.approx([slowly(a[1], b[1], measure) for a, b in pairs])
        assert values[2] == 1 and 0 < values[0] < 1
    with_roles = in_common(pairs, roles=True)
    assert with_roles["edges"][0] < found["edges"][0] and with_roles["edges"][2] == 1


def test_circuits_without_influence_are_not_weighed(organism: Model) -> None:
    (example,) = ioi(1)
    circuit = organism.run(example.text).trace(example.answer, against=example.wrong, through="heads")
    assert list(in_common([((example, circuit),) * 2])) == ["heads", "edges", "channels"]


def test_jaccard_row_by_row() -> None:
    one = csr_array([[1.0, 1, 0, 0], [0.5, 0.2, 0, 0], [0, 0, 0, 0]])
    other = csr_array([[0.0, 1, 1, 1], [0.1, 0.4, 0, 0], [0, 0, 0, 0]])
    assert jaccard_of_pairs(one, other) == pytest.approx([1 / 4, 0.3 / 0.9, 1.0])


# -- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [ioi, published_ioi])
def test_another_wording_keeps_people_and_things(task: object) -> None:
    rng, moved = random.Random(0), set()
    for example in task(30, 1):  # type: ignore[operator]
        other = reworded(example, rng)
        assert other is not None and other.text != example.text
        assert (other.answer, other.against) == (example.answer, example.against)
        assert other.labels["order"] == example.labels["order"] and other.labels["wording"] != example.labels["wording"]
        kept = [role for role in ("IO", "S1", "S2", "PLACE", "OBJECT") if role in example.roles]
        assert all(other.word(role) == example.word(role) for role in kept)
        moved.add(other.labels["wording"])
    assert len(moved) > 5


def test_another_name_is_another_in_every_place() -> None:
    (example,) = ioi(1)
    other = renamed(example, "S", ["Quentin", example.answer, example.against[0]], random.Random(0))
    assert other is not None and other.text == example.text.replace(example.against[0], "Quentin")
    assert (other.answer, other.against) == (example.answer, ("Quentin",))
    other = renamed(example, "IO", ["Quentin"], random.Random(0))
    assert (
        other is not None
        and other.text == example.text.replace(example.answer, "Quentin")
        and other.answer == "Quentin"
    )
    assert renamed(example, "IO", [example.answer], random.Random(0)) is None


def test_usual_changes_fit_the_task(organism: Model) -> None:
    names = [change.name for change in usual(organism, ioi(2))]
    assert names[1:6] == ["bfloat16", "float16", "weights in bfloat16", "half of tau", "double tau"]
    assert names[6:] == ["another wording", "another receiver", "another giver"]
    assert len(usual(organism, greater_than(2))) == 6
    foreign = [replace(ioi(1)[0], text="Said otherwise by Mary to")]
    assert len(usual(organism, foreign)) == 6  # labels alone do not make a prompt that can be said again
    halved = rounded(organism, torch.bfloat16, weights_only=True).hf.lm_head.weight
    assert halved.dtype == torch.float32 and torch.equal(halved, halved.bfloat16().float())
    assert not torch.equal(halved, organism.hf.lm_head.weight)
    assert "bfloat16" not in [change.name for change in usual(rounded(organism, torch.bfloat16), ioi(1))]


def test_tau_is_scaled() -> None:
    tau = scaled_tau(TraceSettings(), 2.0).tau
    assert callable(tau) and tau(24) == pytest.approx(0.2) and tau(3) == 0.99
    assert scaled_tau(TraceSettings(tau=0.3), 0.5).tau == 0.15
    assert scaled_tau(TraceSettings(tau=0.7), 2).tau == 0.99
    with pytest.raises(KeyholeError, match="function"):
        scaled_tau(TraceSettings(tau=tau), 2)


def test_a_store_is_traced_again_as_it_was(
    store: keyhole.store.Store, organism: Model, tmp_path: Path, asked: list[Traced]
) -> None:
    assert settings_of(store).through == Through() and settings_of(store).seeds is None
    settings = keyhole.store.Tracing(through="heads", metric=Probability(0.6), tau=0.3)
    other = keyhole.bulk(ioi(2), organism, out=tmp_path / "x.store", tracing=settings)
    told = settings_of(other)
    assert (told.through, told.seeds, told.tau) == ("heads", Probability(0.6), 0.3)
    kept, refused = varied(organism, asked, Variation("nothing"), settings_of(store))
    assert refused == {} and all(in_common(kept)[name] == (1.0,) * 3 for name in ("heads", "edges", "channels"))


def test_what_cannot_be_compared_says_why(organism: Model, asked: list[Traced]) -> None:
    right, unknown = asked[0][0], replace(asked[1][0], text="Xylophones zoom")
    wrong = replace(right, answer=right.against[0], answers=right.against, against=(right.answer,))
    found = retrace(organism, [right, unknown, wrong], TraceSettings(through="heads"))
    assert isinstance(found[0], Circuit) and all(isinstance(one, Refused) for one in found[1:])
    assert found[2] == Refused("the model answers otherwise") and "Xylophones" in found[1].reason
    change = Variation("never", example=lambda example: None)
    assert varied(organism, asked, change, TraceSettings()) == ([], {"it does not fit": 3})


# -- a whole study ---------------------------------------------------------------------------------------------------


def test_partners_share_what_is_said(store: keyhole.store.Store) -> None:
    asked = {one.index: (one.example, one.circuit) for one in store if one.index < 5 and one.circuit is not None}
    pairs, missing = floors(store, asked, store, random.Random(0))
    assert {"another prompt, same order", "another prompt, same template", "another task"} <= set(pairs) and not missing
    for name, found in pairs.items():
        label = name.removeprefix("another prompt, same ")
        for (own, _), (partner, _) in found:
            if label in own.labels:
                assert own.labels[label] == partner.labels[label] and own.text != partner.text
            if name == "another prompt, unrelated":
                assert own.template != partner.template and own.answer != partner.answer


def test_prompts_are_unrelated_if_neither_wording_nor_answer_is_the_same() -> None:
    """Every pair of two wordings and two answers; where all have one wording, that is no matter."""
    rows = [
        {"template": wording, "answer": answer, "text": f"{wording}{answer}{i}", "label_order": answer + wording}
        for wording in "xy"
        for answer in "ab"
        for i in range(2)
    ]
    fits = _kinds(rows, ["label_order"])
    assert list(fits) == [f"another prompt, {one}" for one in ("same template", "same order", "unrelated")]
    for one in rows:
        for other in rows:
            told = [fit(one, other) for fit in fits.values()]
            wording, answer = (one[name] == other[name] for name in ("template", "answer"))
            assert told == [wording and one is not other, wording and answer and one is not other, not wording | answer]
    same = [{**row, "template": "x"} for row in rows]
    assert _kinds(same, [])["another prompt, unrelated"](same[0], same[2])


def test_a_study_of_a_store(store: keyhole.store.Store, organism: Model, tmp_path: Path) -> None:
    names = one_token_words(organism, NAMES)
    rng = random.Random(0)
    changes = [
        Variation("nothing"),
        Variation("double tau", settings=lambda how: scaled_tau(how, 2.0)),
        Variation("another giver", example=lambda example: renamed(example, "S", names, rng)),
        Variation("never", example=lambda example: None),
    ]
    done: list[tuple[int, int]] = []
    found = stability(store, organism, prompts=4, variations=changes, progress=lambda *told: done.append(told))
    assert found["nothing"].spread("channels") == (1, 1, 1) and done[-1] == (16, 16)
    assert found.left_out == {"never": "it does not fit"}
    assert 0.2 < found["double tau"].spread("channels")[0] < 1 > found["another giver"].spread("edges")[0]
    assert found["another prompt, unrelated"].floor and not found["double tau"].floor
    assert "never: left out, for it does not fit" in str(found)
    for name in ("a.json", "a.html", "a.png"):
        found.save(tmp_path / name)
    assert json.loads((tmp_path / "a.json").read_text())["rows"][0]["change"] == "nothing"
    with pytest.raises(KeyholeError, match="no change 'x'"):
        found["x"]


def test_intervals_stay_within_what_is_possible() -> None:
    row = Stays("x", False, {"heads": (1.0, 1.0, 0.1), "edges": (0.5,)}, {"why": 2})
    assert row.spread("heads")[1:] == (0.0, 1.0) and row.spread("channels") is None and row.n == 3
    assert np.isnan(row.spread("edges")[1])
    told = Stability("m", "t", 3, False, (row,), {})
    assert "x: 2 not compared (why)" in told.summary and told.cells[1][0][3] == "0.50"


def test_the_command(store: keyhole.store.Store, tmp_path: Path) -> None:
    page = tmp_path / "stability.html"
    told = typed("stability", str(store.path), "--prompts", "2", "--out", str(page), "--json")
    assert told.returncode == 0 and page.exists(), told.stderr
    rows = {row["change"]: row for row in json.loads(told.stdout)["rows"]}
    assert rows["nothing: traced again"]["edges"][0] == 1 and rows["bfloat16"]["n"] == 2
    for args, message in {
        ("nowhere.store",): "is no store",
        (str(store.path), "--other", "nowhere.store"): "is no store",
        (str(store.path), "--out", "x.txt"): ".txt",
    }.items():
        told = typed("stability", *args)
        assert told.returncode == 2 and message in told.stderr and told.stderr.count("\n") == 1
