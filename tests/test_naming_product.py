"""Do names reach what they are of? One subject per direction, edges by their direction, files, pages, broken cues."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import keyhole
from commands import keyhole as command
from keyhole import KeyholeError
from keyhole.circuits.text import circuit_text
from keyhole.faithfulness.story import story_text
from keyhole.naming import cues
from keyhole.naming.attached import (
    edge_names,
    head_names,
    ids_beside,
    marked_text,
    name_of,
    named_edges,
    parts,
    require_same_model,
    subject_again,
)
from keyhole.naming.cues import BREAKS, EXTRA, apart, break_cue, broken
from keyhole.naming.explain.language import holds
from keyhole.naming.explain.sentences import Name, parse
from keyhole.naming.figure import names_page
from keyhole.naming.judge import judge
from keyhole.naming.judge.questions import Marked
from keyhole.naming.naming import name, randoms
from keyhole.naming.record import Named, Naming, from_json, load_naming, to_json
from keyhole.naming.representatives import cues_of, side_by_side
from keyhole.naming.subjects import channel_subjects, opposite, signal_subjects
from keyhole.naming.subjects.operands import subjects_of
from keyhole.naming.subjects.subject import About, Shown, Subject, alike, distinct, same_direction
from keyhole.report import Report, Section, Spans, Table, as_html
from keyhole.tasks import ioi
from keyhole.tasks.example import piece_after
from pages import carried
from planted_signals import Holds, planted

PROMPT = "When Mary and John went to the store, John gave a drink to"


@cache
def model() -> keyhole.Model:
    return keyhole.load()


@cache
def circuit() -> keyhole.Circuit:
    return model().run(PROMPT).trace("Mary", against="John")


@cache
def naming() -> Naming:
    return name(circuit(), most=12, random=6, tokens=6000)


def judged(one: Named, text: str | None = "src is a name", p: float = 0.001, passing: float = 0.001) -> Named:
    """A name that passes, is above chance or fails, by its p-values; a helper."""
    test = judge.Tested(
        "detection", "top", 20, 0, 18, 0.9, 0.9, 0.9, 0.9, float(p), float(p), float(passing), float(max(p, passing))
    )
    return replace(one, name=Name(text, "statistics"), tests=(test,) if text else ())


def fires(text: str) -> Holds:
    """Where a sentence is true."""
    clauses = parse(text)
    return lambda pair: all(holds(clause, pair) for clause in clauses)


# -- one subject per direction -------------------------------------------------------------------------------------


def test_every_writer_into_one_channel_is_one_subject_up_to_sign() -> None:
    """By the slow way: the sign of what each edge puts into its one channel."""
    found = signal_subjects(circuit())
    single = [one for one in found if len(one.about["channels"]) == 1]
    kept = distinct(single)
    truth = {(one.head, one.about["channels"], one.about["coordinates"][0] > 0) for one in single}
    assert len(single) > len(kept) == len(truth)
    told = [sum(one.id == i or i in one.about.get("also", ()) for one in kept) for i in (s.id for s in single)]
    assert told == [1] * len(single)  # nobody is lost, and nobody told twice


def test_distinct_keeps_the_first_and_tells_signs_heads_and_offsets_apart() -> None:
    one, turned = channel_subjects(model(), (3, 1), [4])
    twice = replace(one, id="again", query=3 * one.query, key=0.5 * one.key)
    moved = replace(one, id="moved", query_offset=1.0)
    elsewhere = replace(one, id="elsewhere", head=(3, 2))
    bent = replace(one, id="bent", key=one.key.flip(0))
    kept = distinct([one, turned, twice, moved, elsewhere, bent])
    assert [s.id for s in kept] == ["3.1:4", "3.1:4-", "moved", "elsewhere", "bent"]
    assert kept[0].about["also"] == ("again",) and "also" not in kept[1].about
    assert not same_direction(one, turned) and same_direction(one, twice)


def test_same_and_alike_have_their_thresholds() -> None:
    one = channel_subjects(model(), (3, 1), [4])[0]
    across = torch.linalg.qr(torch.stack([one.key, torch.ones_like(one.key)], 1)).Q[:, 1] * one.key.norm()

    def turned(cosine: float) -> Subject:
        return replace(one, id="b", key=cosine * one.key + (1 - cosine**2) ** 0.5 * across)

    assert same_direction(one, turned(0.9995)) and not same_direction(one, turned(0.998))
    assert len(distinct([one, turned(0.998)])) == 2 and len(distinct([one, turned(0.9995)])) == 1
    about = About(channels=(2, 5), coordinates=(1.0, 0.0), side="dest")
    named = Named("a", "signal", (3, 1), about, Name("src is a name", ""), (), ())
    only = replace(naming(), signals=(named,))
    near, far = ({**about, "coordinates": pair} for pair in ((0.92, 0.3919), (0.88, 0.475)))
    assert only.of(replace(one, about=near)) is named and only.of(replace(one, about=far)) is None


def test_both_sides_of_one_channel_are_the_same_direction_and_of_several_are_not() -> None:
    one = About(channels=(2, 5), coordinates=(0.6, 0.8), side="dest")
    assert alike(one, {**one, "coordinates": (0.8, 0.6)}) == pytest.approx(0.96)
    assert alike(one, {**one, "side": "src"}) == 0
    assert alike(one, {**one, "channels": (2, 6)}) == 0 and alike(one, {}) == 0
    single = About(channels=(2,), coordinates=(-1.0,), side="dest")
    assert alike(single, {**single, "side": "src"}) == 1


def test_subjects_of_a_circuit_are_the_strongest_first() -> None:
    found = subjects_of(circuit(), model(), most=5)
    best = max(one.influence or 0 for one in circuit().edges if one.side in ("dest", "src"))
    assert len(found) == 5 and circuit().edges[int(found[0].about["edge"])].influence == best
    assert [one.id for one in subjects_of((3, 1), model(), most=4)] == ["3.1:0", "3.1:0-", "3.1:1", "3.1:1-"]
    assert [one.id for one in subjects_of("3.1:4-", model())] == ["3.1:4-"]


def test_random_directions_are_of_the_same_heads_and_no_two_alike() -> None:
    own = channel_subjects(model(), (3, 1), [0, 1]) + channel_subjects(model(), (2, 5), [0, 1])
    found = randoms(model(), own, 10)
    assert len({one.id for one in found}) == len(distinct(found)) == 10
    heads = [one.head for one in found]
    assert abs(heads.count((3, 1)) - heads.count((2, 5))) <= 2 and {*heads} == {(3, 1), (2, 5)}
    again = randoms(model(), own, 10)
    assert all(torch.equal(a.query, b.query) for a, b in zip(found, again, strict=True))
    assert not torch.equal(found[0].query, randoms(model(), own, 10, seed=1)[0].query)


def test_a_name_gives_its_direction_back() -> None:
    for one in signal_subjects(circuit())[:20]:
        named = Named(one.id, one.kind, one.head, one.about, Name(None, ""), (), ())
        made = subject_again(model(), named)
        assert torch.allclose(made.query, one.query, atol=2e-3) and torch.allclose(made.key, one.key, atol=2e-3)
    with pytest.raises(KeyholeError, match="not stored"):
        subject_again(model(), Named("x", "random", (3, 1), {}, Name(None, ""), (), ()))


# -- names at edges, heads, and in files ---------------------------------------------------------------------------


def test_naming_a_circuit_names_its_strongest_signals_beside_controls() -> None:
    found = naming()
    assert len(found.signals) == 12 and found.fingerprint == model().fingerprint() and found.model == "organism"
    assert {one.group for one in found.controls} >= {"tokens alone", "random directions"}
    assert next(one for one in found.controls if one.group == "random directions").signals == 6
    for one in found.signals:
        assert all(test.beyond is not None and test.passing is not None for test in one.tests) and one.examples


def test_every_named_edge_has_the_name_of_its_own_direction() -> None:
    """A file of the circuit, and another prompt: by head, channels and sign alone."""
    for other in (
        replace(circuit(), run=None),
        model().run(PROMPT.replace("Mary", "Sarah")).trace("Sarah", against="John"),
    ):
        found = named_edges(other, naming(), model())
        assert found
        by_edge = {other.edges[int(s.about["edge"])]: s for s in signal_subjects(other, model())}
        for edge, named in found.items():
            one, again = by_edge[edge], subject_again(model(), named)
            assert one.head == named.head
            assert float(torch.cosine_similarity(one.key, again.key, dim=0)) > 0.6
            if len(edge.channels) == 1:
                assert same_direction(one, again)
    missing = [e for e in circuit().edges if e.side in ("dest", "src") and e not in named_edges(circuit(), naming())]
    ids = {i for one in naming().signals for i in (one.id, *ids_beside(one))}
    every = {circuit().edges[int(s.about["edge"])]: s.id for s in signal_subjects(circuit())}
    assert missing and not any(every[edge] in ids for edge in missing)


def test_the_opposite_sign_has_no_such_name() -> None:
    one = channel_subjects(model(), (3, 1), [4])[0]
    named = Named(one.id, one.kind, one.head, one.about, Name("src is a name", ""), (), ())
    only = replace(naming(), signals=(named,))
    assert only.of(one) is named and only.of("3.1:4") is named
    assert only.of(channel_subjects(model(), (3, 1), [4])[1]) is None and only.of("3.1:4-") is None
    assert only.of(opposite(one)) is None and only.of(opposite(opposite(one))) is named
    assert name_of(only, replace(one, head=(3, 2))) is None


def test_names_below_chance_are_shown_only_when_asked_for_and_what_a_name_lacks_is_said() -> None:
    edges = named_edges(circuit(), naming())
    first, second, third = (edges[e].id for e in list({edges[e].id: e for e in edges}.values())[:3])
    outcomes = {first: (0.001, 0.001), second: (0.5, 0.001), third: (0.001, 0.5)}
    signals = [
        judged(one, "src is a name", *outcomes[one.id]) if one.id in outcomes else judged(one, None)
        for one in naming().signals
    ]
    made = replace(naming(), signals=tuple(signals))
    shown, every = edge_names(circuit(), made), edge_names(circuit(), made, every=True)
    assert {edges[e].id for e in shown} == {first, third} and {edges[e].id for e in every} == {first, second, third}
    for edge, text in every.items():
        here = circuit().tokens[circuit().nodes[edge.receiver].src] in ("Mary", "John")
        assert ("fails" in text) == (edges[edge].id == second) and ("above chance" in text) == (edges[edge].id == third)
        assert ("not so here" in text) == (not here)


def test_tree_story_and_page_show_names_and_nothing_without() -> None:
    edge = max(named_edges(circuit(), naming()), key=lambda e: e.influence or 0)
    names = {edge: "a <name> of its own"}
    assert circuit_text(circuit(), 5).count("a <name>") == 0
    told = [line for line in circuit_text(circuit(), 5, names=names).splitlines() if "a <name>" in line]
    assert len(told) == 1 and told[0].endswith(": a <name> of its own")
    assert "a <name> of its own" in story_text(circuit().story(), 1000, names=names)
    index = circuit().edges.index(edge)
    assert carried(circuit().to_html())["names"] == {} and "<name>" not in circuit().to_html(names)
    assert carried(circuit().to_html(names))["names"] == {str(index): {"text": "a <name> of its own"}}


def test_a_head_is_told_by_its_most_frequent_names_that_passed() -> None:
    rows = [("a", 5, "src is a name", (0.001, 0.001)), ("b", 9, "src is a place", (0.001, 0.001))]
    rows += [
        ("c", 99, "no", (0.9, 0.001)),
        ("d", 4, "src is a name", (0.001, 0.001)),
        ("e", 50, "yes", (0.001, 1)),
    ]
    blank = Named("", "signal", (3, 1), {}, Name(None, ""), (), ())
    signals = [judged(replace(blank, id=i, about={"prompts": n}), text, *p) for i, n, text, p in rows]
    [one] = head_names(replace(naming(), signals=tuple(signals)))
    assert [x.id for x in one.names] == ["b", "a", "e"] and (one.passed, one.right, one.signals) == (3, 4, 5)
    assert str(one) == "3.1 (of 5 4 above chance, 3 pass): src is a place; src is a name; yes"


def test_names_go_through_files_and_those_of_other_weights_are_refused(tmp_path: Path) -> None:
    for suffix in ("json", "html", "csv"):
        naming().save(tmp_path / f"names.{suffix}")
    assert load_naming(tmp_path / "names.json") == naming() == from_json(to_json(naming()))
    lines = (tmp_path / "names.csv").read_text().splitlines()
    assert len(lines) >= 13 and lines[0].startswith("signal,prompts,name,outcome")
    for wrong in (replace(naming(), fingerprint="0" * 64), replace(naming(), fingerprint="")):
        with pytest.raises(KeyholeError, match="not of the weights"):
            named_edges(circuit(), wrong)
    require_same_model(naming(), circuit().model)


def test_the_page_shows_every_name_with_examples_tests_and_controls() -> None:
    text = names_page(replace(naming(), model="/home/somebody/a-model.gguf"))
    assert "a-model.gguf: what its signals mean" in text and "/home" not in text
    for one in naming().signals:
        assert text.count(f">{one.id.replace('<', '&lt;')}</h2>") == 1
    assert text.count('<mark class="dest">') + text.count('<mark class="both">') == sum(
        len(one.examples) for one in naming().signals
    )
    assert "random directions" in text and "tokens alone" in text and "corrected p" in text and "http" not in text


def test_marked_pieces_are_escaped_and_unlinked_sections_have_no_link() -> None:
    cell = Spans([("<b>", ""), ("x&", "dest")])
    sections = [Section("one", [Table(("text",), [(cell,)])]), Section("two", ["x"], linked=False)]
    made = as_html(Report("t", "", sections))
    assert '&lt;b&gt;<mark class="dest">x&amp;</mark>' in made
    assert made.count("<a href") == 1 and '<h2 id="part1">two' in made


def test_examples_read_with_dest_and_src_marked() -> None:
    shown = Shown(0, ("<bos>", "Mary", "went", "to"), 3, 1, 1.0, 1.0, "top")
    assert marked_text(shown) == "<bos> ((Mary)) went [[to]]"
    assert marked_text(replace(shown, src=3)) == "<bos> Mary went [[((to))]]"
    long = replace(shown, tokens=("a" * 100, " b", " c", " d" + "e" * 100), dest=2, src=1)
    assert marked_text(long) == "…" + "a" * 59 + " ((b)) [[c]] d" + "e" * 58 + "…"
    assert "".join(text for text, _ in parts(shown)) == "<bos> Mary went to"


# -- what separates two, representatives, cues ---------------------------------------------------------------------


def test_two_signals_are_told_apart_by_what_only_one_has() -> None:
    a = planted(fires('dest is "to", and src is a name'), id="a", head=(0, 0))
    b = planted(fires('dest is "to", and src is a place'), id="b", head=(0, 0))
    one, other = apart(a, b)
    assert one.passes and other.passes and one.signal == other.other == "a"
    words = (" the", " store", " for", " Mary", " to")
    at_name, at_place = Marked(words, 4, 3), Marked(words, 4, 1)
    assert [fires(str(one.name))(pair) for pair in (at_name, at_place)] == [True, False]
    assert [fires(str(other.name))(pair) for pair in (at_name, at_place)] == [False, True]
    same, again = apart(a, replace(a, subject=replace(a.subject, id="c")))
    assert same.shared == again.shared == 1 and not same.passes and same.name.text is None


def test_broken_prompts_keep_their_roles() -> None:
    for example in ioi(40, seed=2):
        made = {how: broken(example, how, name="Zoe", place="park") for how in BREAKS}
        assert made["intact"] == example
        for how, one in made.items():
            for role, word in (
                ("IO", example.answer),
                ("S1", example.wrong),
                ("S2", example.wrong),
                ("END", example.word("END")),
            ):
                assert one.word(role) == word, (how, role, one.text)
            assert {r: one.word(r) for r in ("PLACE", "OBJECT")} == {r: example.word(r) for r in ("PLACE", "OBJECT")}
            assert one.roles["S1+1"] == piece_after(one.text, one.roles["S1"])
        first = example.roles["IO"] < example.roles["S1"]
        assert (made["order"].roles["IO"] < made["order"].roles["S1"]) != first
        assert sorted(made["order"].text) == sorted(example.text)
        roles = made["extra name"].roles
        assert min(roles["IO"], roles["S1"]) < roles[EXTRA] < max(roles["IO"], roles["S1"])
        assert made["position"].text == f"The park was quiet. {example.text}"
    with pytest.raises(KeyholeError, match="of ioi"):
        broken(replace(ioi(1)[0], task="boxes"), "order", name="Zoe", place="park")


def test_a_broken_cue_is_measured_at_the_roles() -> None:
    """Against the plain way: the run's own queries, keys and attention."""
    subject, examples = channel_subjects(model(), (1, 6), [5])[1], ioi(6, seed=4, order="ABBA")
    made = break_cue(model(), [subject], examples, names={subject.id: "src is the second name so far"})
    values, weights = [], list[float]()
    for example in examples:
        run = model().run(example.text)
        q, k = run.attention_run(1).q[6], run.attention_run(1).k[6]
        d, s = example.position(run, "END"), example.position(run, "IO")
        a, b = float(q[d] @ subject.query), float(k[s] @ subject.key)
        values.append(a * b if a > 0 and b > 0 else 0.0)
        weights.append(float(run.pattern(1)[6, d, s]))
    intact = next(one for one in made if (one.how, one.src) == ("intact", "IO"))
    assert intact.value == pytest.approx(sum(values) / 6, rel=1e-4) and intact.prompts == 6
    assert intact.attention == pytest.approx(sum(weights) / 6, rel=1e-4)
    said = {(one.how, one.src): one.said for one in made}
    assert (said["intact", "IO"], said["intact", "S1"]) == (0, 6)  # ABBA names the receiver first
    assert (said["order", "IO"], said["order", "S1"]) == (6, 0)
    assert said["extra name", EXTRA] == 6 and said["extra name", "S1"] == 0
    assert {one.src for one in made if one.how != "extra name"} == {"IO", "S1", "S2"}


def test_half_of_the_usual_value_counts_as_firing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual value is the median at the src where that is largest, in intact prompts."""
    pair = Marked(("a", "b"), 1, 0)
    values = {
        ("intact", "IO"): [2.0, 4.0, 6.0],
        ("intact", "S1"): [0.2, 0.2, 0.2],
        ("order", "IO"): [1.9, 2.1, 3.0, 0.1],
    }
    found = {("3.1:4", how, src): [(value, 0.5, pair) for value in row] for (how, src), row in values.items()}
    monkeypatch.setattr(cues, "_measure", lambda *args: found)
    made = break_cue(model(), channel_subjects(model(), (3, 1), [4])[:1], ioi(1))
    assert {(one.how, one.src): (one.fires, one.prompts) for one in made} == {
        ("intact", "IO"): (3, 3),
        ("intact", "S1"): (0, 3),
        ("order", "IO"): (2, 4),
    }


def test_a_signal_and_its_opposite_never_fire_together() -> None:
    both = [one for channel in range(4) for one in channel_subjects(model(), (1, 6), [channel])]
    found = cues._measure(model(), both, ioi(4, seed=5), "END", 0)
    together = [
        (a[0], b[0])
        for one, other in zip(both[::2], both[1::2], strict=True)
        for how in BREAKS
        for a, b in zip(found[one.id, how, "IO"], found[other.id, how, "IO"], strict=True)
    ]
    assert all(min(pair) == 0 for pair in together) and max(map(max, together)) > 0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> keyhole.store.Store:
    return keyhole.bulk(
        "ioi", model(), n=12, out=tmp_path_factory.mktemp("s") / "ioi.store", choices={"design": "balanced"}
    )


def test_a_store_is_named_and_its_representatives_are_told_side_by_side(store: keyhole.store.Store) -> None:
    found = name(store, model(), most=8, random=4, tokens=4000)
    counts = [int(one.about["prompts"]) for one in found.signals]
    assert counts == sorted(counts, reverse=True) and len(found.signals) == 8
    passing = replace(found, signals=tuple(judged(one) for one in found.signals))
    sides = side_by_side(store, passing, model(), by="order")
    assert [one.group for one in sides] == ["order=ABBA", "order=BABA"]
    for one in sides:
        assert store[one.prompt].example.labels["order"] == one.group[-4:] and one.edges
        assert [e.share for e in one.edges] == sorted((e.share for e in one.edges), reverse=True)
        assert "stands for" in str(one) and "src is a name" in str(one)
    assert {one.how for one in cues_of(store, sides, model(), most=2)} == {*BREAKS}
    assert "Broken cues" in names_page(passing, sides, cues_of(store, sides, model(), most=1))
    with pytest.raises(KeyholeError, match="no label 'colour'"):
        side_by_side(store, passing, model(), by="colour")


def test_the_command_tells_sides_and_cues_as_json_too(store: keyhole.store.Store, tmp_path: Path) -> None:
    few = ["--most", "12", "--random", "2", "--tokens", "3000"]
    told = command("name", str(store.path), *few, "--by", "order", "--json", "--out", "n.json", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["by"] == "order" and [one["group"] for one in found["sides"]] == ["order=ABBA", "order=BABA"]
    named = load_naming(tmp_path / "n.json")
    assert {"schema": 2, "naming": found["naming"]} == json.loads((tmp_path / "n.json").read_text())
    sides = side_by_side(store, named, model(), by="order")
    assert found["sides"] == json.loads(json.dumps([one.plain for one in sides]))
    edges = [edge for one in found["sides"] for edge in one["edges"]]
    assert edges and {edge["signal"] for edge in edges} <= {one.id for one in named.signals}
    broken_cues = cues_of(store, sides, model(), seed=named.seed)
    assert [(c["signal"], c["how"], c["src"], c["fires"]) for c in found["cues"]] == [
        (c.signal, c.how, c.src, c.fires) for c in broken_cues
    ]
    plain = command("name", str(store.path), *few, "--by", "order", folder=tmp_path).stdout
    for side in sides:
        assert side.group in plain and f"Prompt {side.prompt} stands for {side.circuits} circuits" in plain
        words = {word for edge in side.edges for word in (f"{edge.share:.1%}", *edge.text.split(), *edge.name.split())}
        assert words <= set(plain.split())  # in tables, texts fold


# -- the command line ----------------------------------------------------------------------------------------------


def test_the_command_names_writes_and_goes_on(tmp_path: Path) -> None:
    few = ["--most", "4", "--random", "2", "--tokens", "2000"]
    told = command("name", "3.1", *few, "--out", "names.json", "--out", "n.html", "--folder", "f", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    out = " ".join(told.stdout.split())
    never = "no name can pass: with 2 random directions the smallest p-value is 1/3, above 0.05. Take --random 19 or"
    assert never in told.stderr and never in out  # before the work, and with its result
    assert "detection, top" in out and "random directions" in out and (tmp_path / "f" / "examples.npz").exists()
    assert len(load_naming(tmp_path / "names.json").signals) == 4
    again = command("name", "3.1", *few, "--folder", "f", "--json", folder=tmp_path)
    assert again.returncode == 0 and json.loads(again.stdout) == json.loads((tmp_path / "names.json").read_text())
    traced = command("trace", PROMPT, "--names", "names.json", "--all-names", folder=tmp_path)
    assert traced.returncode == 0 and "answer at 14:to" in traced.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["name", "nowhere.json"], "there is no nowhere.json"),
        (["name", "9.9"], "no head 9.9"),
        (["name", "3.1", "--out", "names.txt"], ".json"),
        (["name", "3.1", "--by", "order"], "give a store"),
        (["name", "3.1", "--beside", "3.1:2"], "--beside is for one channel"),
        (["name", "3.1:2", "--beside", "3.1"], "not for a whole head"),
        (["name", "3.1", "--corpus", "none.txt"], "there is no file"),
        (["trace", PROMPT, "--all-names"], "give a file of names"),
        (["trace", PROMPT, "--names", "none.json"], "none.json"),
    ],
)
def test_bad_requests_are_one_line(args: list[str], says: str, tmp_path: Path) -> None:
    told = command(*args, folder=tmp_path)
    assert told.returncode == 2 and says in " ".join(told.stderr.split())
    assert "Traceback" not in told.stderr and not told.stdout
