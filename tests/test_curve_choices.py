"""Choices of curves: baselines, tokens, rankings, prompts; scores saved and read back; true edges recovered."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import keyhole
from commands import keyhole as typed
from conftest import tiny_model
from keyhole import KeyholeError, Model
from keyhole.circuits.exports import read_mib
from keyhole.faithfulness.masked import masked
from keyhole.faithfulness.token_masks import everything, only
from keyhole.intervene import Metric
from keyhole.lab.known import auroc, build, recovery
from keyhole.progress import silent
from keyhole.store.manifest import spread
from keyhole.studies.curves.cohort import CohortQuestion, StandIn, groups_of, questions_from
from keyhole.studies.curves.curves import compare_methods, curves
from keyhole.studies.curves.cutting import Cutting, Ranked, edge_count, left_with, orders_of, ranked, token_edges
from keyhole.studies.curves.record import SHARES
from keyhole.studies.curves.scores import prompt_scores
from keyhole.studies.curves.settings import METHODS, CurveSettings
from keyhole.tasks import examples
from test_curves import runs_of

PATCHED = StandIn("counterfactual")


def tiny_questions(n: int = 4) -> list[CohortQuestion]:
    """Prompts of one kind, each with a counterfactual of its own."""
    runs = runs_of("gpt2", 2 * n)
    pairs = zip(runs[:n], runs[n:], strict=True)
    return [CohortQuestion(run, Metric(8, (3,), (5,)), counterfactual=tuple(other.token_ids)) for run, other in pairs]


@pytest.fixture(scope="module")
def asked(organism: Model) -> list[CohortQuestion]:
    drawn = [example for example in examples("ioi", organism, 600, 3) if example.template == "ABBA-0"]
    return questions_from(organism, drawn[:16], counterfactuals=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, organism: Model) -> keyhole.store.Store:
    path = tmp_path_factory.mktemp("choices") / "ioi.store"
    return keyhole.bulk("ioi", organism, n=24, out=path, choices={"wordings": [0]})


# -- what stands in --------------------------------------------------------------------------------------------------


def test_each_prompt_is_patched_from_its_own_counterfactual() -> None:
    """Without any edge every answer is that of the prompt's own counterfactual, in parts of any size."""
    questions = tiny_questions()
    (group,) = groups_of(questions, PATCHED)
    model = questions[0].run.model
    expected = [q.metric.of(model.run(list(q.counterfactual or ()), bos=False).logits[-1]) for q in questions]
    none = torch.zeros(group.masked.wiring.joined.shape)
    assert group.answers(none).tolist() == pytest.approx(expected, abs=1e-9)
    assert [float(part.answers(none)[0]) for part in group.parts(1)] == pytest.approx(expected, abs=1e-9)
    assert np.ptp(expected) > 0.01


def test_prompts_without_a_baseline_are_left_out() -> None:
    first, *rest = tiny_questions()
    assert groups_of([replace(first, counterfactual=None), *rest], PATCHED)[0].numbers == (1, 2, 3)
    with pytest.raises(KeyholeError, match="equal length"):
        replace(first, counterfactual=(1, 2))
    none = [replace(question, counterfactual=None) for question in (first, *rest)]
    with pytest.raises(KeyholeError, match="no prompt has a counterfactual"):
        compare_methods(none, none, CurveSettings(methods=("random",)), stand_in=PATCHED)


def test_counterfactuals_of_tasks_have_as_many_tokens(organism: Model) -> None:
    for task in ("ioi", "greater_than", "induction", "pronouns"):
        for question in questions_from(organism, examples(task, organism, 4, 3), counterfactuals=True):
            assert question.counterfactual is not None and question.counterfactual != question.run.token_ids
            assert len(question.counterfactual) == len(question.run)
            assert question.counterfactual[0] == question.run.token_ids[0], "both begin alike"


# -- scores and orders -----------------------------------------------------------------------------------------------


def test_all_methods_have_scores_of_one_shape(asked: list[CohortQuestion]) -> None:
    (group,) = groups_of(asked[:2], PATCHED)
    shape = (2, *group.masked.wiring.joined.shape, len(asked[0].run))
    absent = ~group.masked.wiring.joined
    for method in METHODS:
        if method == "random":
            with pytest.raises(KeyholeError, match="drawn"):
                prompt_scores(method, group, asked)
            continue
        scores = prompt_scores(method, group, asked)
        assert scores.shape == shape and np.isfinite(scores).all() and not scores[:, absent].any(), method
        assert scores.any((1, 2, 3)).all(), method
    shares, least = prompt_scores("share", group, asked), prompt_scores("sufficient", group, asked)
    answers = [group.masked.masked_logits([everything(float(a), i) for a in (1, 0)]) for i in range(2)]
    gaps = [metric.of(rows[0]) - metric.of(rows[1]) for metric, rows in zip(group.metrics, answers, strict=True)]
    assert shares.sum((1, 2, 3)) == pytest.approx(gaps, rel=0.06)
    for i, scores in enumerate(least):  # what a search found keeps the answer; others follow by their share
        found = np.argwhere(scores > 0.5)
        left = group.metrics[i].of(group.masked.masked_logits([only(found, i)])[0])
        nothing = group.metrics[i].of(answers[i][1])
        assert len(found) < 100 and 0.9 <= (left - nothing) / gaps[i] <= 1.2
        others = scores < 0.5
        assert np.corrcoef(scores[others], shares[i][others])[0, 1] == pytest.approx(1)


def test_scores_are_averaged_as_asked() -> None:
    questions = tiny_questions()
    groups = groups_of(questions, PATCHED)
    wiring = groups[0].masked.wiring
    each = prompt_scores("gradients", groups[0], questions)
    every = token_edges(wiring, 9)
    expected = {
        ("dropped", "task"): {(): each.sum(-1).mean(0)[tuple(wiring.edges.T)]},
        ("kept", "task"): {questions[0].kind: each.mean(0)[tuple(every.T)]},
        ("dropped", "prompt"): {i: own.sum(-1)[tuple(wiring.edges.T)] for i, own in enumerate(each)},
        ("kept", "prompt"): {i: own[tuple(every.T)] for i, own in enumerate(each)},
    }
    for (tokens, per), scores in expected.items():
        settings = CurveSettings(tokens=tokens, per=per)
        result = ranked("gradients", groups, questions, settings)
        assert set(result.scores) == set(scores)
        for key, values in scores.items():
            assert result.scores[key] == pytest.approx(values, abs=1e-6)
        assert result.components == pytest.approx(expected["dropped", "task"][()], abs=1e-12)
        n = edge_count(groups[0], settings)
        assert n == len(wiring if tokens == "dropped" else every)
        orders = orders_of(result, groups[0], settings)
        assert len(orders) == (1 if per == "task" else 4) and all(sorted(order) == [*range(n)] for order in orders)


def test_orders_are_by_sign_or_by_size() -> None:
    (group,) = groups_of(tiny_questions(), PATCHED)
    n = len(group.masked.wiring)
    scores = np.random.default_rng(0).normal(size=n)
    method = Ranked("one", {(): scores})
    signed, absolute = (orders_of(method, group, CurveSettings(ranking=way))[0] for way in ("signed", "absolute"))
    assert (np.diff(scores[signed]) <= 0).all() and (np.diff(np.abs(scores)[absolute]) <= 0).all()


def test_edges_are_kept_at_their_tokens() -> None:
    """Against passes with dense masks, prompt by prompt; with all edges kept it is the model."""
    questions = tiny_questions()
    (group,) = groups_of(questions, PATCHED)
    every, settings = token_edges(group.masked.wiring, 9), CurveSettings(tokens="kept")
    assert (
        len({tuple(edge) for edge in every.tolist()}) == len(every)
        and (every[every[:, 1] == every[:, 1].max(), 2] == 8).all()
    )
    order = np.random.default_rng(0).permutation(len(every))
    left = left_with(group, [order], [700], settings)
    dense = np.zeros((*group.masked.wiring.joined.shape, 9), dtype=bool)
    dense[tuple(every[order[:700]].T)] = True
    for i, question in enumerate(questions):
        mask = replace(only(np.zeros((0, 3), dtype=np.int64), i), ground=dense)
        expected = question.metric.of(group.masked.masked_logits([mask])[0])
        assert left[i] == pytest.approx(expected, abs=1e-9)
    whole = left_with(group, [order], [len(every)], settings)
    assert whole == pytest.approx([q.metric.of(q.run.logits[-1]) for q in questions], abs=1e-9)
    orders = [np.roll(order, 7 * i) for i in range(4)]
    each = left_with(group, orders, [700], settings)
    assert each[0] == pytest.approx(left[0]) and abs(each[1:] - left[1:]).max() > 1e-3
    components = [order[order < len(group.masked.wiring)] for order in orders]
    one_by_one = left_with(group, components, [50], CurveSettings())
    for i, part in enumerate(group.parts(1)):
        assert one_by_one[i] == pytest.approx(float(part.answers(part.masked.kept(components[i][:50]))[0]), abs=1e-9)


# -- curves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", ["dropped", "kept"])
@pytest.mark.parametrize("per", ["task", "prompt"])
def test_all_choices_make_curves(asked: list[CohortQuestion], tokens: str, per: str) -> None:
    chosen = ("accpp", "share", "sufficient", "random")
    settings = CurveSettings(methods=chosen, tokens=tokens, per=per, ranking="absolute", draws=2)  # type: ignore[arg-type]
    seconds: list[float] = []
    result = compare_methods(asked[::2], asked[1::2], settings, stand_in=PATCHED, announce=seconds.append)
    assert [curve.method for curve in result.curves] == [*chosen] and result.baseline == "counterfactual"
    assert len(seconds) == 1 and 0 < seconds[0] < 600
    for method in ("share", "sufficient"):
        assert result.cmd(method)[0] < 0.2 < result.cmd("random")[0]
        distances = result.distances(method)
        assert list(distances) == [100, 1000] and distances[100][1] <= distances[100][0] <= distances[100][2]
    assert ("which is a fit" in result.summary) == (per == "prompt")
    assert ("at tokens" in result.summary) == (tokens == "kept")
    assert result.per_prompt("share").shape == (len(SHARES), 8)
    assert result.per_prompt("share")[-1] == pytest.approx(np.ones(8))
    assert (result.own_circuits is not None) == ((tokens, per) == ("dropped", "task"))
    record = json.loads(json.dumps(result.record()))
    assert record["tokens"] == tokens and record["per"] == per and set(record["methods"][0]["at"]) == {"100", "1000"}
    assert result.plot() is not None and "1,000 edges" in result.to_html()


def test_distances_are_those_of_the_definition(asked: list[CohortQuestion]) -> None:
    settings = CurveSettings(methods=("share",))
    groups = groups_of(asked[:4], PATCHED)
    cutting = Cutting(groups, replace(settings, baseline="counterfactual"), silent)
    scored = ranked("share", groups, asked[:4], settings)
    result = cutting.curves([scored])
    (order,) = orders_of(scored, groups[0], settings)
    left = left_with(groups[0], [order], [100], settings)
    f = (left - result.nothing).mean() / (result.everything - result.nothing).mean()
    assert result.distances("share")[100][0] == pytest.approx(abs(1 - f))
    twice = np.tile(2 * result.everything - result.nothing, (1, 2, 1))  # f = 2, which is no success
    over = replace(result, curves=(replace(result["share"], at=twice),))
    assert over.distances("share")[100] == pytest.approx((1, 1, 1))


def test_scores_are_saved_and_read_back_to_the_same_curves(asked: list[CohortQuestion], tmp_path: Path) -> None:
    shown, tried = asked[:6], asked[6:12]
    settings = CurveSettings(methods=("share", "accpp", "random"))
    result = compare_methods(shown, tried, settings, stand_in=PATCHED)
    paths = result.save_scores(tmp_path / "scores")
    assert sorted(path.name for path in paths) == ["accpp.json", "share.json"]
    again = compare_methods(
        shown, tried, CurveSettings(methods=("random",)), stand_in=PATCHED, files=[read_mib(p) for p in paths]
    )
    for method in ("share", "accpp"):
        assert np.array_equal(again[f"{method}.json"].answers, result[method].answers)
    assert min(own.score for own in read_mib(tmp_path / "scores" / "share.json").edges.values()) < 0
    with pytest.raises(KeyholeError, match="without tokens"):
        compare_methods(
            shown,
            tried,
            CurveSettings(methods=("random",), tokens="kept"),
            stand_in=PATCHED,
            files=[read_mib(paths[0])],
        )


def test_what_cannot_be_asked_is_refused(organism: Model, asked: list[CohortQuestion]) -> None:
    for method in ("share", "integrated", "sufficient", "eap-ig-inputs"):
        with pytest.raises(KeyholeError, match="zero is no baseline under a norm"):
            CurveSettings(methods=(method,), baseline="zero")
    assert set(CurveSettings(baseline="zero").compared) == {"accpp", "heads", "svt", "gradients", "gim", "random"}
    for wrong in ({"tokens": "some"}, {"ranking": "up"}, {"per": "day"}, {"baseline": "none"}, {"methods": ("guess",)}):
        with pytest.raises(KeyholeError):
            CurveSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(KeyholeError, match="draws is 0, but should be at least 1"):
        CurveSettings(draws=0)
    lonely = [replace(question, template=str(i)) for i, question in enumerate(asked)]
    with pytest.raises(KeyholeError, match="roles at the same tokens"):
        compare_methods(lonely[::2], lonely[1::2], CurveSettings(tokens="kept"), stand_in=PATCHED)


# -- stores and the command ------------------------------------------------------------------------------------------


def test_a_store_is_patched_by_its_task(store: keyhole.store.Store, organism: Model) -> None:
    settings = CurveSettings(methods=("gradients", "random"), prompts=6, baseline="counterfactual")
    result = curves(store, organism, settings)
    assert result.baseline == "counterfactual" and result.task == "ioi"
    assert result.cmd("gradients")[0] < result.cmd("random")[0]
    rest = curves(store, organism, replace(settings, baseline="resting", methods=("random",)))
    assert rest.nothing != pytest.approx(result.nothing)


@pytest.mark.parametrize("ranking", ["signed", "absolute"])
def test_a_store_is_cut_by_our_files_as_by_the_methods(
    store: keyhole.store.Store, organism: Model, tmp_path: Path, ranking: str
) -> None:
    """The whole curve, the fixed numbers of edges and all that was found: the same out of a file, given by its path."""
    methods = ("share", "gim", "eap-ig-inputs", "gradients")
    settings = CurveSettings(methods=methods, prompts=4, baseline="counterfactual", ranking=ranking)  # type: ignore[arg-type]
    result = curves(store, organism, settings)
    paths = result.save_scores(tmp_path)
    again = curves(store, organism, replace(settings, methods=("random",)), files=paths)
    for method in methods:
        own, its = result[method], again[f"{method}.json"]
        assert np.array_equal(own.answers, its.answers) and np.array_equal(own.at, its.at) and own.found == its.found
        assert result.faithfulness(method) == again.faithfulness(f"{method}.json")


def test_prompts_of_ones_own_have_no_counterfactuals(organism: Model, tmp_path: Path) -> None:
    drawn = [replace(example, task="mine") for example in examples("ioi", organism, 12, 3)]
    kept = keyhole.bulk(drawn, organism, out=tmp_path / "mine.store")
    settings = CurveSettings(methods=("random",), baseline="counterfactual", prompts=4)
    with pytest.raises(KeyholeError, match="no counterfactuals can be drawn for prompts of 'mine'"):
        curves(kept, organism, settings)


def test_the_command_has_all_choices(store: keyhole.store.Store, tmp_path: Path) -> None:
    scores = tmp_path / "scores"
    first = ("curves", str(store.path), "--prompts", "4", "--baseline", "counterfactual", "--json")
    told = typed(*first, "--methods", "share,random", "--save-scores", str(scores))
    assert told.returncode == 0, told.stderr
    ours = {row["method"]: row for row in json.loads(told.stdout)["methods"]}
    told = typed(*first, "--methods", "random", "--file", str(scores / "share.json"))
    its = {row["method"]: row for row in json.loads(told.stdout)["methods"]}
    assert its["share.json"]["cmd"] == ours["share"]["cmd"] and its["share.json"]["at"] == ours["share"]["at"]
    kept = ("--tokens", "kept", "--ranking", "absolute", "--per", "prompt", "--methods", "share,random")
    record = json.loads(typed(*first, *kept).stdout)
    assert (record["tokens"], record["ranking"], record["per"]) == ("kept", "absolute", "prompt")
    unused = tmp_path / "unused"
    told = typed("curves", str(store.path), "--baseline", "zero", "--methods", "share", "--save-scores", str(unused))
    assert not unused.exists()  # nothing was written
    assert told.returncode == 2 and "zero is no baseline" in told.stderr and told.stderr.count("\n") == 1


# -- a machine whose circuit is known --------------------------------------------------------------------------------


def test_true_edges_are_ranked_first() -> None:
    """ACC++ ranks exactly the true edges first; shares and circuits that suffice nearly so, gradients less."""
    cues, nouns = (list(itertools.permutations(words)) for words in (("big", "red", "old"), ("cat", "dog", "sun")))
    prompts = [
        f"{topic} : {c[0]} {n[0]} , {c[1]} {n[1]} , {c[2]} {n[2]} . {c[k]}"
        for topic, c, n, k in itertools.product(("French", "Berlin", "Paris", "German"), cues, nouns, range(3))
    ]
    found = {row.method: row for row in recovery(build(), spread(prompts, 23))}
    assert found["accpp"].components == found["accpp"].tokens == 1
    for method in ("share", "sufficient"):
        assert found[method].components > 0.9 and found[method].tokens > 0.97
        assert found[method].components > found["gradients"].components
    assert found["heads"].components < 0.6  # it says nothing of values and MLPs
    with pytest.raises(KeyholeError, match="too few"):
        recovery(build(), prompts[:4])


def test_auroc_is_counted_by_hand() -> None:
    rng = np.random.default_rng(0)
    scores, true = rng.integers(0, 5, 40).astype(float), rng.random(40) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[true] for b in scores[~true]]
    assert auroc(scores, true) == pytest.approx(np.mean(pairs))
    with pytest.raises(KeyholeError, match="true edges"):
        auroc(scores, np.zeros(40, dtype=bool))


def test_masks_of_tiny_models_agree_with_their_wiring() -> None:
    made = masked([tiny_model("llama").run([3, 5, 7, 11])])
    assert len(token_edges(made.wiring, 4)) == 4 * (len(made.wiring) - len(made.wiring.writers)) + len(
        made.wiring.writers
    )
