"""Slides on names: verdicts follow planted effects and nothing else; what random directions do as well is no effect."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import keyhole as command
from drawn import check_drawn, keep_saved
from keyhole.naming.cues import BREAKS, EXTRA
from keyhole.naming.judge.judge import ALONE, RANDOM, RANDOM_PASS, SHUFFLED, Outcome, Share, share
from keyhole.naming.subjects.subject import Subject
from keyhole_papers import talk
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.results import Verdict, read_results
from keyhole_papers.runner import Task, experiments
from keyhole_papers.talk import Prompts, names, representatives
from keyhole_papers.talk.names import Follows, NamedShares, Way
from keyhole_papers.talk.representatives import Solved
from misbehaving import Body, Said, knows_the_rule, serving

pytestmark = pytest.mark.xdist_group("talk names")  # their study is made once
RUNS: dict[str, Attempt] = {**names.RUNS, **representatives.RUNS}
del RUNS["talk-16"]  # of no names
GPT2, OTHER = (Prompts(name, 600, 590, 580, "600 prompts") for name in ("gpt2", "a/stand-in"))
NOTHING = ("not", "needs a model")


def verdicts(id: str, make: Callable[[Prompts], Any]) -> tuple[Verdict, Verdict]:
    """How a record is judged if it is GPT-2's, and if it is another's; told and drawn as well."""
    run, found = RUNS[id], []
    assert isinstance(run, Experiment)
    for of in (GPT2, OTHER):
        record = make(of)
        told = run.findings(record)
        assert told.measured and told.numbers and "nan" not in told.measured
        assert ("stood in" in told.note) == (of is OTHER)
        found.append(told.verdict)
        run.draw(record)
    return found[0], found[1]


# -- how many names are right --------------------------------------------------------------------------------------


def of(passed: int, signals: int, group: str = "") -> Share:
    outcomes: list[Outcome] = ["passes"] * passed + ["fails"] * (signals - passed)
    return share(group, outcomes)


def shares(right: int, random: int, shuffled: int, *, n: int = 200) -> Callable[[Prompts], NamedShares]:
    counts = {SHUFFLED: shuffled, ALONE: 20, RANDOM: random, RANDOM_PASS: 0}
    controls = {group: of(passed, n, group) for group, passed in counts.items()}
    return lambda prompts: NamedShares(prompts, of(right, n), of(right // 4, n), controls)


def test_names_count_where_they_are_their_own_and_beyond_random_directions() -> None:
    assert verdicts("talk-19", shares(126, 60, 10)) == ("partly", "partly")  # 63 %, and still by another judge
    assert verdicts("talk-19", shares(182, 158, 12)) == ("partly", "partly")
    assert verdicts("talk-19", shares(20, 8, 2)) == ("partly", "partly")  # far from 63 % refutes nothing
    assert verdicts("talk-19", shares(126, 60, 120)) == NOTHING  # any name does
    assert verdicts("talk-19", shares(0, 0, 0)) == NOTHING


def test_names_that_random_directions_have_as_well_say_nothing_of_signals() -> None:
    record = shares(126, 126, 10)(GPT2)
    assert names.own_names(record) and not names.beyond_random(record)
    assert verdicts("talk-19", shares(126, 126, 10)) == verdicts("talk-19", shares(100, 150, 10)) == NOTHING
    assert not names.beyond_random(shares(130, 125, 10)(GPT2)) and names.beyond_random(shares(150, 125, 10)(GPT2))
    alone = replace(record, controls={})
    assert not names.own_names(alone) and not names.beyond_random(alone) and names.findings(alone).verdict == "not"


# -- how IO is found -----------------------------------------------------------------------------------------------


def follows(kind: str, name: str) -> Follows:
    """A direction that fires at a place, with a person, at both names, or nowhere."""
    at: dict[Any, float] = {(how, src): 0.0 for how in BREAKS for src in ("IO", "S1", "S2", EXTRA)}
    for how in BREAKS:
        turned = how == "order"
        at[how, "IO"] = {"place": 1.0 - turned, "person": 1.0, "both": 1.0, "none": 0.1}[kind]
        at[how, "S1"] = {"place": float(turned), "person": 0.0, "both": 0.9, "none": 0.1}[kind]
    return Follows(name, at)


def way(order: str, kinds: str, random: str, *, heads: bool = True, seed: int = 0) -> Way:
    letters = {"p": "place", "i": "person", "b": "both", "n": "none"}
    own, nulls = (
        tuple(follows(letters[x], f"{g} {i}") for i, x in enumerate(k)) for g, k in (("s", kinds), ("r", random))
    )
    rng = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(2, 8, generator=rng) for _ in own]
    made = tuple(Subject(one.signal, "signal", (1, 6), *x) for one, x in zip(own, vectors, strict=True))
    named = {"s 0": "src is the second name so far"}
    movers, inhibition = (("1.6",), ("1.2",)) if heads else ((), ())
    about: dict[str, Any] = {"names": named, "movers": movers, "inhibition": inhibition, "directions": made}
    return Way(order=order, prompt=7, signals=own, random=nulls, **about)


RANDOM_WAYS = "b" * 40 + "n" * 18 + "pi"


def told(order: str, kinds: str, random: str = RANDOM_WAYS, **how: Any) -> Callable[[Prompts], Solved]:
    other = way("ABBA" if order == "BABA" else "BABA", "ppp", random, seed=1)
    return lambda prompts: Solved(prompts, way(order, kinds, random, **how), other)


def test_a_place_is_followed_by_what_moves_to_the_other_person() -> None:
    place, person, both = (follows(kind, "a") for kind in ("place", "person", "both"))
    assert (place.place, place.person, person.place, person.person) == (True, False, False, True)
    assert not (both.place or both.person) and place.anywhere and not place.extra
    third = Follows("a", {**place.fires, ("extra name", EXTRA): 1.0, ("extra name", "IO"): 0.2})
    assert third.extra and not Follows("a", {}).anywhere


def test_baba_is_solved_as_published_where_all_three_are_seen() -> None:
    assert verdicts("talk-20", told("BABA", "pppbb")) == ("reproduced", "partly")
    assert verdicts("talk-20", told("BABA", "pppbb", heads=False)) == NOTHING  # one of three
    assert verdicts("talk-20", told("BABA", "iiibb")) == NOTHING  # with the person
    assert verdicts("talk-20", told("BABA", "bbbbb")) == NOTHING
    assert verdicts("talk-20", told("BABA", "pppbb", "p" * 40 + "b" * 20)) == NOTHING  # random directions as well
    assert verdicts("talk-20", told("BABA", "")) == NOTHING


def test_abba_is_solved_by_other_signals_or_only_in_part() -> None:
    assert verdicts("talk-21", told("ABBA", "pppbb")) == ("reproduced", "partly")
    assert verdicts("talk-21", told("ABBA", "bbbbb")) == NOTHING

    def same(prompts: Prompts) -> Solved:
        record = told("ABBA", "pppbb")(prompts)
        return replace(record, other=replace(record.other, directions=record.way.directions))

    assert same(GPT2).shared == 3 and verdicts("talk-21", same) == ("partly", "partly")
    turned = same(GPT2)
    opposite = tuple(replace(one, key=-one.key) for one in turned.way.directions)
    assert replace(turned, other=replace(turned.other, directions=opposite)).shared == 0


def test_names_are_told_where_they_speak_of_a_place() -> None:
    assert told("BABA", "ppp")(GPT2).named == ["s 0"]
    plain = told("BABA", "ppp")(GPT2)
    assert replace(plain, way=replace(plain.way, names={"s 0": "src is a name"})).named == []


# -- the runners ---------------------------------------------------------------------------------------------------


def test_the_organism_says_what_it_stood_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three to their end, from one study; the signals are of heads that look from the end at IO."""
    saved, made, traced = keep_saved(monkeypatch), list[int](), talk.bulk
    monkeypatch.setattr(talk, "bulk", lambda *args, **options: made.append(1) or traced(*args, **options))
    names._names.cache_clear()
    for id, run in RUNS.items():
        assert isinstance(run, Experiment)
        job = Job(tmp_path / id, quick=True)
        job.folder.mkdir()
        record = run.measure(job)
        text = run.findings(record)
        assert text.verdict in ("partly", "needs a model") and "The built-in organism" in text.note
        for name in run.result(record, job.folder).figures:
            check_drawn(saved[job.folder / name], job.folder / name)
        if isinstance(record, Solved):
            own = {"ABBA": 2, "BABA": 4}[record.way.order]  # of four at most
            assert len(record.way.signals) == len(record.way.directions) == own and len(record.way.random) == 4
            assert record.way.movers and {one.head for one in record.way.directions}
    assert made == [1]


def test_a_model_behind_a_server_names_and_judges(tmp_path: Path) -> None:
    """Over real HTTP. What was answered before a stop is not asked again, and statistics' names are kept apart."""
    dead, both = 20, ("--explainer", "llm", "--judge", "llm", "--llm-model", "tiny")
    paid: list[str] = []

    def dies(number: int, body: Body) -> Said:
        if number >= dead:
            return Said(404, b"{}")
        paid.append(body["messages"][1]["content"])
        return knows_the_rule(number, body)

    def run(url: str, *ids: str) -> Any:
        return command("reproduce", *ids, "--quick", *both, "--llm", url, "--out", "out", folder=tmp_path)

    with serving(dies) as server:
        stopped = run(server.url, "talk-19")
        assert stopped.returncode == 1 and "knows no model 'tiny'" in stopped.stdout
        assert "Traceback" not in stopped.stderr
    with serving(knows_the_rule) as server:
        done = run(server.url, "talk-19", "talk-20", "svf-thm3")
        assert done.returncode == 0, done.stderr
        asked = [body["messages"][1]["content"] for body in server.bodies]
        assert asked and len(paid) == dead and not set(asked) & set(paid) and len(set(asked)) == len(asked)
    assert "--explainer llm changes nothing in svf-thm3" in done.stderr
    kept = read_results(tmp_path / "out")
    options = "--explainer llm --judge llm --llm-model tiny"
    assert set(kept) == {f"talk-19 {options} --quick", f"talk-20 {options} --quick", "svf-thm3 --quick"}
    for id in ("talk-19", "talk-20"):
        assert "Names are by tiny and judged by tiny." in kept[f"{id} {options} --quick"].note
        assert server.url not in str(kept)  # a host is nobody's business
    usual = command("reproduce", "talk-19", "--quick", "--out", "out", folder=tmp_path)
    assert usual.returncode == 0 and "talk-19 --quick" in read_results(tmp_path / "out")
    assert "Names are by statistics and judged by a rule." in read_results(tmp_path / "out")["talk-19 --quick"].note


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["talk-19", "--explainer", "llm"], "give both"),
        (
            ["talk-19", "--llm", "http://a/v1", "--llm-model", "b"],
            "--llm has no use without --explainer llm or --judge llm: give one of them or both",
        ),
        (["talk-19", "--judge", "llm", "--llm", "a", "--llm-model", "b"], "should look like https://host/v1"),
        (
            ["cc-fig2", "cc-fig3", "--judge", "llm", "--llm", "http://a/v1", "--llm-model", "b"],
            "--judge llm changes nothing in any of cc-fig2, cc-fig3: leave it out, or run items that name signals",
        ),
        (["talk-19", "--judge", "llm", "--llm", "http://a/v1", "--llm-model", "b"], "say --yes, or try --quick first"),
        (["talk-19", "--explainer", "statisticss"], "'statisticss' is not one of"),
    ],
)
def test_bad_namers_are_one_line_before_any_work(args: list[str], says: str, tmp_path: Path) -> None:
    told = command("reproduce", *args, folder=tmp_path)
    assert told.returncode == 2 and says in " ".join(told.stderr.replace("│", " ").split()) and not told.stdout
    assert "Traceback" not in told.stderr and not list(tmp_path.glob("*/results.json"))


def test_all_are_registered_and_share_a_process(tmp_path: Path) -> None:
    found = experiments()
    assert set(RUNS) == {"talk-19", "talk-20", "talk-21"}
    assert all(found[id] is run and CATALOGUE[id].later is None and CATALOGUE[id].needs for id, run in RUNS.items())
    tasks = [Task(CATALOGUE[id], Job(tmp_path), {}, tmp_path, run) for id, run in RUNS.items()]
    assert {task.family for task in tasks} == {"keyhole_papers.talk.names"}
