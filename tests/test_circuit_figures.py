"""Figures about circuits: no verdict is positive without evidence, on random weights, or for less than was claimed."""

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from conftest import SMOLLM2
from keyhole import KeyholeError, Model, Run
from keyhole.errors import MissingModelError, NothingToTraceError
from keyhole.lab.emergence import Push
from keyhole.models.organism import folder as organism_folder
from keyhole.stats import Interval
from keyhole.tasks import ioi
from keyhole.tasks.catalogue import PromptSet
from keyhole.tracing.settings import SvtSettings
from keyhole.tracing.svt import trace_svt
from keyhole_papers import svt as ioi_studies
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.results import Result
from keyhole_papers.svt import (
    LEAST,
    Subject,
    answers,
    cuts,
    effects,
    known,
    network,
    of_gpt2,
    prompted,
    subject,
    trace_answer,
)
from keyhole_papers.svt import signals as ioi_signals
from keyhole_papers.svt.effects import Effect, Into, over_prompts, rank_correlation
from keyhole_papers.svt.known import Agreement, lattice, rewired
from keyhole_papers.svt.network import Network
from keyhole_papers.svt.signals import Residuals, small
from keyhole_papers.talk import signals, single

pytestmark = pytest.mark.xdist_group("lab runs")
MODULES = (network, answers, cuts, known, ioi_signals, signals, single)
# svt-fig9 is of words in the heads of GPT-2, whatever a model answers: test_circuit_figures asks the others.
RUNS: dict[str, Attempt] = {id: run for module in MODULES for id, run in module.RUNS.items() if id != "svt-fig9"}
HEADS = {"S-inhibition": ((2, 6),), "name mover": ((3, 1), (2, 5), (3, 0))}
POSITIVE = ("reproduced", "partly")
NOTHING_TO_JUDGE = r"answers without any signal between its parts|fires in these \d+ prompts"


@pytest.fixture(scope="module")
def random_gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights in a folder that is called like the published model, with heads that do fire."""
    place = tmp_path_factory.mktemp("models") / "gpt2"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(organism_folder()))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.25)
    model.save_pretrained(place)
    for path in Path(organism_folder()).glob("*token*"):
        shutil.copy(path, place)
    return str(place)


def run(id: str, job: Job) -> Result:
    job.folder.mkdir(exist_ok=True)
    return RUNS[id](job)


def a_subject(model: Model, roles: dict[str, tuple[tuple[int, int], ...]], source: str | None = None) -> Subject:
    prompts = PromptSet(tuple(ioi(LEAST, 0)), "indirect objects", LEAST)
    return Subject(source, model, prompts, roles, 0.25)


# -- random weights and no evidence --------------------------------------------------------------------------------


def test_without_evidence_nothing_is_shown() -> None:
    real, other = of_gpt2("gpt2"), of_gpt2(None)
    assert real.verdict([]) == "not" and other.verdict([]) == "needs a model"
    assert real.verdict([True, True], first=False) == "not" and other.verdict([True], first=False) == "needs a model"
    assert real.verdict([True, False, False]) == "not"  # less than half is no part of it


@pytest.mark.parametrize("id", RUNS)
def test_random_weights_are_refused_in_one_sentence(id: str, random_gpt2: str, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match=r"prefers IO to S in . of 8|answers none of these prompts right"):
        run(id, Job(tmp_path / id, model=random_gpt2, quick=True))


@pytest.mark.parametrize("id", RUNS)
def test_random_weights_show_nothing(
    id: str, random_gpt2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if their answers happen to be right."""
    monkeypatch.setattr(ioi_studies, "require_solved", lambda *args: None)
    monkeypatch.setattr(ioi_studies, "_GPT2", HEADS)
    monkeypatch.setattr(single, "_TRACED", LEAST)
    monkeypatch.setattr(single, "_RESTING", 3)  # every head fires, which takes long; one is held out
    try:
        outcome = run(id, Job(tmp_path / id, model=random_gpt2, quick=True, seed=7))
    except KeyholeError as refused:  # for want of anything to judge; anything else is a fault
        assert re.search(NOTHING_TO_JUDGE, str(refused))
        return
    finally:
        ioi_studies.prompted.cache_clear()
    assert outcome.state not in POSITIVE or id in GEOMETRY, outcome.measured
    assert outcome.measured


GEOMETRY = ("talk-12",)  # is about the method, and holds for whatever a model has learned


# -- heads and roles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["svt-fig4", "svt-fig5", "svt-fig6", "svt-fig14", "svt-fig22", "svt-fig25", "svt-fig27"])
def test_the_organism_has_no_name_mover(id: str, tmp_path: Path) -> None:
    with pytest.raises(MissingModelError, match="the built-in organism has no name mover"):
        run(id, Job(tmp_path / id, quick=True))


def test_no_head_stands_for_two(organism: Model) -> None:
    seen = a_subject(organism, {"name mover": ((1, 6), (1, 7))})
    assert seen.head("name mover", 1) == (1, 7)
    with pytest.raises(MissingModelError, match=r"no name mover but 1\.6, 1\.7, and this figure is about the third"):
        seen.head("name mover", 2)


def test_studies_are_made_once_for_jobs_with_the_same_choices(tmp_path: Path) -> None:
    reports: list[str] = []

    def watching(name: str) -> Job:
        return Job(tmp_path / name, quick=True, progress=lambda done, total: reports.append(name))

    first, second = watching("a"), watching("b")
    assert first == second and hash(first) == hash(second) and first != replace(second, seed=1)
    assert subject(first) is subject(second) is prompted(first)
    effects.effects.cache_clear()
    measured = [effects.effects(job, "S-inhibition") for job in (first, second)]
    assert measured[0] is measured[1] and reports and set(reports) == {"a"}


# -- networks ------------------------------------------------------------------------------------------------------


def test_a_failing_trace_is_not_a_silent_prompt(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise KeyholeError("scores are not rebuilt")

    monkeypatch.setattr(network, "trace_svt", broken)
    monkeypatch.setattr(answers, "_fires", lambda *args: True)
    with pytest.raises(KeyholeError, match="not rebuilt"):
        network.network_of(a_subject(organism, {"name mover": ((1, 6),)}))
    monkeypatch.setattr(answers, "_fires", lambda *args: False)
    with pytest.raises(KeyholeError, match="fires in these 8 prompts"):
        network.network_of(a_subject(organism, {"name mover": ((1, 6),)}))


def test_tokens_are_called_by_the_role_at_or_right_before_them(organism: Model) -> None:
    example = next(one for one in ioi(40, 0) if one.template == "ABBA-0")
    made = organism.run(example.text)  # When A and B went to the PLACE , B gave a OBJECT to
    assert network.token_roles(example, made) == (
        *("START", "START+1", "IO", "IO+1", "S1", "S1+1", None, None, "PLACE", "PLACE+1"),
        *("S2", "S2+1", None, "OBJECT", "END"),
    )


def test_contributions_are_added_up_by_the_role_of_the_written_token(organism: Model) -> None:
    """Against a plain look at the circuits; a head that fires on two sources has written once."""
    seen = a_subject(organism, {"name mover": ((1, 6),)})
    found = network.network_of(seen)
    totals, times = Counter[Any](), Counter[Any]()
    traced = several = 0
    for example in seen.examples:
        made = organism.run(example.text)
        end, io = example.position(made, "END"), example.position(made, "IO")
        try:
            settings = SvtSettings(seen.threshold, start=[(1, 6, end, io)])
            circuit = made.trace(method=settings)
        except NothingToTraceError:
            continue
        traced += 1
        roles = {at: role for role, at in example.positions(made).items() if role != "S1+1"}
        values: dict[Any, dict[Any, float]] = {}
        for edge in circuit.edges:
            writer, reader = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
            if edge.side == "target" or writer.dest not in roles:
                continue
            key = ((writer.layer, writer.head), (reader.layer, reader.head), roles[writer.dest], edge.side)
            before = values.setdefault(key, {})
            several += edge.receiver in before
            before[edge.receiver] = edge.weight
        times.update(values.keys())
        totals.update({key: sum(own.values()) for key, own in values.items()})
    assert found.traced == traced > 3 and several > 0
    plain = {(e.writer, e.reader, e.token, e.side): c for e, c in found.written.items() if "+" not in e.token}
    assert plain.keys() == times.keys() and {key[2] for key in plain} >= {"IO", "END"}
    for key, carried in plain.items():
        assert carried.share == times[key] / traced and carried.total == pytest.approx(totals[key])
    assert set(found.drawn(0.5)) == {edge for edge, own in found.written.items() if own.share >= 0.5}
    assert found.fired[1, 6] == 1.0 and all(0 < share <= 1 for share in found.fired.values())


def traced_as(monkeypatch: pytest.MonkeyPatch, seen: Subject, networks: dict[str, Network]) -> None:
    monkeypatch.setattr(network, "subject", lambda job: seen)
    monkeypatch.setattr(network, "traced", lambda job, channels="singular": networks[channels])


KNOWN: dict[str, tuple[tuple[int, int], ...]] = {"name mover": ((3, 1), (3, 2)), "S-inhibition": ((2, 1), (2, 2))}


def edges(*writers: tuple[int, int], side: str = "src") -> dict[network.Edge, float]:
    return {(writer, mover, side): 0.9 for writer in writers for mover in KNOWN["name mover"]}


def test_finding_no_known_head_is_no_part_of_it(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Network(edges((0, 3), (1, 3)), KNOWN["name mover"], 20)
    few = Network(edges((0, 3), side="dest"), KNOWN["name mover"], 20)
    traced_as(monkeypatch, a_subject(organism, KNOWN), {"singular": none, "all": few})
    assert network.RUNS["svt-fig16"](Job(tmp_path)).state == "needs a model"
    right = Network(edges(*KNOWN["S-inhibition"]), KNOWN["name mover"], 20)
    traced_as(monkeypatch, a_subject(organism, KNOWN), {"singular": right, "all": few})
    assert network.RUNS["svt-fig16"](Job(tmp_path)).state == "partly"
    traced_as(monkeypatch, a_subject(organism, KNOWN), {"singular": replace(right, traced=LEAST - 1), "all": few})
    assert network.RUNS["svt-fig16"](Job(tmp_path)).state == "needs a model"


OTHERS = tuple((2, head) for head in range(3, 8))


def woven(crossed: bool) -> Network:
    """Two inhibitors write to both movers, five others to two more heads each; or the readers are dealt round."""
    readers = [*KNOWN["name mover"], (3, 4), (3, 5), (3, 6), (3, 7)]
    pairs = [(writer, reader) for writer in KNOWN["S-inhibition"] for reader in readers[:2]]
    pairs += [(writer, readers[2 + (i + j) % 4]) for i, writer in enumerate(OTHERS) for j in range(2)]
    if not crossed:
        pairs = [((2, 1), (3, 1)), ((2, 1), (3, 4)), ((2, 2), (3, 2)), ((2, 2), (3, 5))]
        pairs += [(writer, readers[(i + j) % 6]) for i, writer in enumerate(OTHERS) for j in range(2)]
    return Network({(a, b, "dest"): 0.9 for a, b in pairs}, KNOWN["name mover"], 20)


def test_a_network_agrees_and_crosses(organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, job = a_subject(organism, KNOWN), Job(tmp_path)
    real = lattice(seen, KNOWN["name mover"], woven(True).pairs(network.NETWORK))
    assert real.holds == [True, True] and len(real.crossing) == 4 and real.p < 0.05
    traced_as(monkeypatch, seen, {"singular": woven(True)})
    assert network.RUNS["svt-fig14"](job).state == "partly"
    assert not Agreement(0.5, 0.6, 0.4, p=0.3).agrees and Agreement(0.5, 0.6, 0.1, p=0.001).agrees


def test_a_lattice_that_chance_would_give_is_none(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, job = a_subject(organism, KNOWN), Job(tmp_path)
    shuffled = lattice(seen, KNOWN["name mover"], woven(False).pairs(network.NETWORK))
    assert len(shuffled.crossing) == 2 and shuffled.p > 0.05 and shuffled.holds == [False, False]
    whole = Network(edges(*KNOWN["S-inhibition"]), KNOWN["name mover"], 20)
    forced = lattice(seen, KNOWN["name mover"], whole.pairs(network.NETWORK))
    assert forced.several == 2 and forced.p == 1 and forced.holds == [False, False]  # with these degrees it must cross
    traced_as(monkeypatch, seen, {"singular": woven(False)})
    assert network.RUNS["svt-fig14"](job).state == "needs a model"
    traced_as(monkeypatch, seen, {"singular": whole})
    assert network.RUNS["svt-fig14"](job).state == "needs a model"
    assert network.RUNS["svt-fig15"](job).state == "partly"  # the heads are the known ones all the same


def test_rewired_networks_keep_how_many_heads_are_joined() -> None:
    pairs, rng = sorted(woven(True).pairs(network.NETWORK)), random.Random(1)
    for _ in range(5):
        found = rewired(pairs, rng)
        assert len(set(found)) == len(pairs) and found != pairs
        assert all(writer[0] < reader[0] for writer, reader in found)
        for end in (0, 1):
            assert Counter(pair[end] for pair in found) == Counter(pair[end] for pair in pairs)


# -- what removal does ---------------------------------------------------------------------------------------------


def an_effect(prompt: int, weight: float, answer: float, **more: Any) -> Effect:
    plain = Effect(prompt, "dest", "global", False, weight, 1, answer, -weight, -answer, 0.0, 0.0, 0.9999, 1.0, 4.0)
    return replace(plain, **more)


def verdict(experiment: Attempt, own: list[Effect], folder: Path) -> str:
    """How effects on GPT-2 are judged; told and drawn as well."""
    assert isinstance(experiment, Experiment)
    push = Push(Interval(1.0, 0.5, 1.5), Interval(-0.5, -0.75, -0.25))
    of = of_gpt2("gpt2", "256 published indirect objects (mixed)", roles=True)
    record = Into(of, "name mover", (9, 6), tuple(own), {}, push)
    outcome: Result = experiment.result(record, folder)
    assert outcome.measured
    assert f"{push}" in outcome.note and "Prompts: 256 published indirect objects (mixed)." in outcome.note
    return outcome.state


def fallen(answer: Callable[[int, int], float], prompts: int = 12, **more: Any) -> list[Effect]:
    return [an_effect(p, 0.1 + 0.1 * k + 0.001 * p, answer(p, k), **more) for p in range(prompts) for k in range(4)]


@pytest.mark.parametrize(
    ("claim", "answer", "expected"),
    [
        ("heavier", lambda p, k: -1.0 - k, "reproduced"),
        ("heavier", lambda p, k: -4.0 + k, "partly"),  # both fall, but the answer less for heavier edges
        ("heavier", lambda p, k: 1.0 + k, "not"),
        ("alike", lambda p, k: -1.0 - k, "reproduced"),
        ("alike", lambda p, k: -1.0 - (p * 7 + k * 5) % 11, "partly"),
        ("apart", lambda p, k: -1.0 - k, "partly"),
        ("apart", lambda p, k: -1.0 - (p * 7 + k * 5) % 11, "reproduced"),
        ("rises", lambda p, k: 1.0 + k, "reproduced"),
        ("rises", lambda p, k: -1.0 - k, "not"),
    ],
)
def test_claims_about_proportion_are_judged(claim: Any, answer: Any, expected: str, tmp_path: Path) -> None:
    figure = cuts.falls(0, "dest", "global", claim)
    assert verdict(figure, fallen(answer), tmp_path) == expected
    for few in (fallen(answer, prompts=LEAST - 1), []):
        assert verdict(figure, few, tmp_path) == "not"


def test_heavier_edges_and_missing_places_are_judged(tmp_path: Path) -> None:
    falls = [one for mode in ("global", "local") for one in fallen(lambda p, k: -1.0 - k, mode=mode)]
    flat = [replace(one, answer=-1.0, boosted=1.0) for one in falls]
    heavier = cuts.singles("name mover", 0, ("dest",), heavier=True)
    assert verdict(heavier, falls, tmp_path) == "reproduced"
    assert verdict(cuts.singles("name mover", 0), falls, tmp_path) == "partly"  # nothing at the source
    assert verdict(heavier, flat, tmp_path) == "partly"
    for id in ("svt-fig22", "svt-fig25", "svt-fig21", "svt-fig27"):
        assert verdict(RUNS[id], [], tmp_path) == "not"


def test_trifles_and_what_random_channels_do_are_no_effects(tmp_path: Path) -> None:
    falls = [one for mode in ("global", "local") for one in fallen(lambda p, k: -1.0 - k, mode=mode)]
    trifles = [replace(one, answer=1e-3 * one.answer, boosted=1e-3 * one.boosted) for one in falls]
    chance = [replace(one, random=one.answer, random_boosted=one.boosted) for one in falls]
    for own in (trifles, chance):
        assert verdict(cuts.singles("name mover", 0, ("dest",)), own, tmp_path) == "not"
        assert verdict(cuts.falls(0, "dest", "global", "heavier"), own, tmp_path) == "not"
        sets = [replace(one, together=True, answer=4 * one.answer, random=4 * one.random) for one in own]
        assert verdict(RUNS["svt-fig25"], sets + own, tmp_path) == "not"


def opposed(scale: float = 1.0, by_chance: float = 0.0) -> list[Effect]:
    """Global removal lowers, local removal raises, local boosting lowers the logit difference."""
    low, high = fallen(lambda p, k: -scale), fallen(lambda p, k: scale, mode="local")
    both = [replace(one, boosted=-one.answer, random=by_chance * one.answer) for one in low + high]
    both = [replace(one, random_boosted=by_chance * one.boosted) for one in both]
    return both + [replace(one, side="src") for one in both]


@pytest.mark.parametrize("id", ["svt-fig21", "svt-fig27"])
def test_an_anomaly_must_be_more_than_chance(id: str, tmp_path: Path) -> None:
    assert verdict(RUNS[id], opposed(), tmp_path) == "reproduced"
    for control in (opposed(scale=1e-3), opposed(by_chance=0.9)):
        assert verdict(RUNS[id], control, tmp_path) == "not"


def test_residuals_are_judged_by_many_prompts(tmp_path: Path) -> None:
    alone = fallen(lambda p, k: -1.0, mode="local")
    sets = [replace(one, together=True, cosine=0.995) for one in alone]

    def judged_as(own: list[Effect], together: bool) -> str:
        record = Residuals(of_gpt2("gpt2", "256 published indirect objects (mixed)"), tuple(own))
        outcome = small("cosine", together=together).result(record, tmp_path)
        assert outcome.measured
        return outcome.state

    assert judged_as(alone + sets, together=False) == judged_as(alone + sets, together=True) == "reproduced"
    chance = [replace(one, random=one.answer) for one in alone]
    assert judged_as(chance, together=False) == "not"  # random channels do as much
    assert judged_as(alone[:2], together=False) == "not"
    assert judged_as(alone[:2], together=True) == "not"  # no sets at all
    wide = [replace(one, cosine=0.96) for one in sets]
    assert judged_as(alone + wide, together=True) == "not"  # wide, and not peaked
    no_wider = [replace(one, cosine=0.996) for one in alone] + [replace(one, cosine=0.999) for one in sets]
    assert judged_as(no_wider, together=True) == "partly"  # peaked, but no wider


def test_correlations_have_intervals_over_prompts() -> None:
    many = fallen(lambda p, k: -1.0 - k)
    whole, low, high = rank_correlation(many, lambda one: one.weight, lambda one: -one.answer)
    assert 0.9 < low < high <= 1 and 0.9 < whole <= 1
    copies = [replace(one, prompt=0) for one in many]
    assert rank_correlation(copies, lambda one: one.weight, lambda one: one.answer)[1] != low  # one prompt has none
    assert over_prompts(copies, lambda one: one.answer)[0] == pytest.approx(-2.5)


# -- answers and their circuits ------------------------------------------------------------------------------------


def test_prompts_without_a_push_are_counted(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = a_subject(organism, {})
    first = organism.run(seen.examples[0].text).token_ids

    def refuses(run: Run, *args: Any, **options: Any) -> Any:
        if run.token_ids == first:
            raise NothingToTraceError("the model prefers the other name.")
        return trace_svt(run, *args, **options)

    monkeypatch.setattr(answers, "trace_svt", refuses)
    traced = answers.answers_of(seen)
    assert traced.skipped == 1 and len(traced.traced) == LEAST - 1
    assert "In 1 of 8 prompts no writer pushes towards IO" in traced.note


def test_signals_are_those_of_singular_vector_tracing(organism: Model) -> None:
    traced = answers.answers_of(a_subject(organism, {})).traced
    answer = max(traced, key=lambda one: sum(one.writers.values()))
    assert answer.circuit.parameters.method == "svt" and answer.circuit.parameters.threshold == 0.25
    for head in answer.writers:
        cuts = answer.out_of(head)
        assert cuts and all(cut.basis == "homogeneous" and cut.keys == "source" for cut in cuts)
        places = {(cut.layer, cut.head, cut.dest, cut.src, cut.side, cut.signals[0].writer.dest) for cut in cuts}
        assert len(places) == len(cuts)  # a head with two sources is removed once


def test_a_published_model_is_traced_from_its_name_movers(organism: Model) -> None:
    seen = a_subject(organism, {"name mover": ((1, 6),)})
    seen = replace(seen, source="gpt2", threshold=0.1)
    traced = answers.answers_of(seen)
    assert traced.traced and all(one.circuit.parameters.seeds == "given" for one in traced.traced)
    for answer in traced.traced:
        (place,) = answer.circuit.parameters.start
        run = answer.run
        assert place == (1, 6, len(run) - 1, answer.example.position(run, "IO"))
    assert "from the name movers that fire on IO" in traced.note
    silent = answers.answers_of(replace(seen, threshold=0.999))
    assert silent.traced == () and "In 8 of 8 prompts no name mover fires on IO" in silent.note


def test_only_a_bias_is_no_circuit(organism: Model) -> None:
    made = organism.run(ioi(1, 0)[0].text)
    least = int(made.logits[-1].argmin())
    assert trace_answer(made, least, against=int(made.logits[-1].argmax()), metric="linear") is None
    with pytest.raises(KeyholeError, match=r"tau is 7\.0"):
        trace_answer(made, int(made.logits[-1].argmax()), tau=7.0)


def test_published_models_that_fail_refute() -> None:
    verdicts = {
        source: [signals._verdict(source, holds) for holds in ([True], [False], [])]
        for source in (None, "EleutherAI/pythia-160m", "/x/gemma-2-2b/")
    }
    assert verdicts.pop(None) == ["partly", "needs a model", "needs a model"]
    assert all(told == ["partly", "not", "not"] for told in verdicts.values())


def test_talk_prompts_are_held_out_and_intervals_over_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_TASKS", ("ioi",))
    outcome = signals.RUNS["talk-11"](Job(tmp_path, quick=True, seed=3))
    signals._circuits.cache_clear()
    assert outcome.state == "needs a model"  # three prompts are too few
    assert "none was run" in outcome.note and "ioi" in outcome.measured
    assert "of 3 held-out indirect objects in the organism's own wordings (mixed)" in outcome.note
    prompts, lost = outcome.numbers["ioi: prompts"], outcome.numbers["ioi: attention lost"]
    assert isinstance(prompts, int) and prompts <= 3 and isinstance(lost, list) and len(lost) == 3


def test_models_without_signals_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_TASKS", ("ioi",))
    monkeypatch.setattr(signals, "trace_answer", lambda *args: None)
    for figure in signals.RUNS.values():
        with pytest.raises(MissingModelError, match="without any signal"):
            figure(Job(tmp_path, quick=True, seed=4))


# -- prompts of real models ----------------------------------------------------------------------------------------


def test_talk_prompts_of_a_real_model_are_published_and_fitted(tmp_path: Path) -> None:
    """SmolLM2 answers none of the generator's own years, whose last two digits are one token of the organism."""
    traced = signals._circuits.__wrapped__(Job(tmp_path, model=str(SMOLLM2), quick=True))
    assert traced.prompts["ioi"] == "the first 3 of 256 published indirect objects (mixed)"
    assert traced.prompts["greater than"].endswith("in single tokens of the model, asked for the tens of a year")
    assert traced.right["greater than"] == 3 and len(traced.circuits["greater than"]) == 3
    assert f"{traced.right['ioi']} of {traced.prompts['ioi']}" in traced.of.text
    assert all(circuit.run is None for circuit in traced.circuits["ioi"])  # hundreds of them are kept


def test_signals_are_removed_in_all_prompts(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[int | None] = []
    monkeypatch.setattr(Subject, "runs", lambda self, most=None, progress=None: prompts.append(most) or [])
    assert answers.answers_of(a_subject(organism, {})).traced == () and prompts == [None]


def test_a_stand_in_loses_its_signals_in_some_circuits_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_STAND_IN", 2)
    removed = signals.measure_removed(Job(tmp_path, quick=True))
    assert all(len(own) == min(2, len(removed.traced.circuits[task])) for task, own in removed.rows.items())
    assert "in the first 2 circuits of a task" in signals.found_removed(removed).note
    monkeypatch.setattr(signals, "_STAND_IN", 48)
    assert "circuits of a task" not in signals.found_removed(signals.measure_removed(Job(tmp_path, quick=True))).note
