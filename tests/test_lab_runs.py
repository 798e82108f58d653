"""Experiments on heads, trainings and signals: quick runs give finite numbers, an allowed verdict and their figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from conftest import SMOLLM2
from drawn import check_drawn, keep_saved
from keyhole import Model
from keyhole.errors import MissingModelError
from keyhole.lab.roles import RULE, Role, role_attention
from keyhole.tasks import published_ioi
from keyhole.tasks.catalogue import prompts_for
from keyhole.tasks.example import Example
from keyhole_papers import svt as ioi_studies
from keyhole_papers.experiment import Job
from keyhole_papers.results import Result, Verdict
from keyhole_papers.runner import experiments
from keyhole_papers.svf import emergence
from keyhole_papers.svt import cuts, heads_by_role, is_gpt2, network, of_gpt2, slices, subject
from keyhole_papers.svt.effects import into
from keyhole_papers.svt.network import Network
from keyhole_papers.talk import signals

pytestmark = pytest.mark.xdist_group("lab runs")  # their studies are made once
MODULES = (emergence, slices, network, cuts, signals)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """Runs one published item as `keyhole reproduce --quick` does."""
    out = tmp_path_factory.mktemp("runs")

    def run(id: str) -> Result:
        job = Job(out / id, quick=True)
        job.folder.mkdir(exist_ok=True)
        result = experiments()[id](job)
        return replace(result, figures=tuple(str(job.folder / name) for name in result.figures))

    return run


IDS = ["svf-fig6b", "svf-fig7", "svf-table2", "svf-fig8a", "svt-fig10", "svt-fig23", "talk-10", "talk-12", "talk-25"]


@pytest.mark.parametrize("id", IDS)
def test_quick_runs_tell_what_they_measured(
    quick: Callable[[str], Result], id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = keep_saved(monkeypatch)
    outcome = quick(id)
    assert outcome.state in get_args(Verdict) and outcome.state != "reproduced"  # a stand-in cannot
    assert outcome.measured and "stood" in outcome.note and outcome.numbers
    values = [v for number in outcome.numbers.values() for v in (number if isinstance(number, list) else [number])]
    assert all(math.isfinite(value) for value in values)
    for path in outcome.figures:
        check_drawn(saved[Path(path)], Path(path))
    assert outcome.figures or id == "svf-table2"


def test_every_run_is_registered_once() -> None:
    found = experiments()
    for module in MODULES:
        assert module.RUNS and all(found[id] is run for id, run in module.RUNS.items())


def test_only_gpt2_reproduces_or_refutes() -> None:
    assert is_gpt2("gpt2") and is_gpt2("openai-community/gpt2/") and not is_gpt2("gpt2-medium") and not is_gpt2(None)
    real, other = of_gpt2("gpt2"), of_gpt2(None)
    assert [real.verdict(holds) for holds in ([True], [True, False], [False])] == ["reproduced", "partly", "not"]
    assert [other.verdict(holds) for holds in ([True], [True, False, False], [])] == ["partly", *["needs a model"] * 2]


def test_trainings_of_other_models_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(MissingModelError, match="no checkpoints of gpt2 are known"):
        emergence.measure_fall(Job(tmp_path, model="gpt2", quick=True))


def test_trained_models_are_kept(quick: Callable[[str], Result]) -> None:
    folder = Path(quick("svf-fig6b").figures[0]).parents[1] / "trained"
    (kept,) = folder.glob("*.safetensors")
    assert kept.name.startswith("language-0-")


@pytest.mark.parametrize("quick", [False, True])
def test_a_real_model_gets_the_published_prompts(
    quick: bool, tmp_path: Path, smollm2: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them: the paper's 256, or the first eight of these."""
    monkeypatch.setattr(ioi_studies, "loaded", lambda *args: smollm2)
    monkeypatch.setattr(ioi_studies, "heads_by_role", lambda *args: {})  # half a minute, and not asked for here
    of_job = ioi_studies.prompted(Job(tmp_path, model=str(SMOLLM2), quick=quick))
    assert list(of_job.examples) == published_ioi(8 if quick else 256, design="mixed")
    assert of_job.prompts.about == f"{'the first 8 of ' if quick else ''}256 published indirect objects (mixed)"
    ioi_studies.prompted.cache_clear()


def test_figures_on_a_real_model_run_the_published_prompts(
    tmp_path: Path, smollm2: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Sequence[Example]] = []
    monkeypatch.setattr(ioi_studies, "loaded", lambda *args: smollm2)
    monkeypatch.setattr(ioi_studies, "heads_by_role", lambda *args: given.append(args[2]) or {})
    monkeypatch.setattr(ioi_studies, "sparse_study", lambda model, texts, **options: texts)
    job, first = Job(tmp_path, model=str(SMOLLM2), quick=True, seed=1), published_ioi(8, seed=1, design="mixed")
    assert list(ioi_studies.prompted(job).examples) == first
    assert ioi_studies.measured.__wrapped__(job) == [example.text for example in first]
    ioi_studies.prompted.cache_clear()
    assert given
    for roles in given:  # other prompts than those that measure, in the same wordings
        assert len(roles) == 32 and {example.labels["wordings"] for example in roles} == {"published"}
        assert not {example.text for example in roles} & {each.text for each in published_ioi(256, design="mixed")}


def test_what_a_note_says_of_prompts_and_roles() -> None:
    published, own = (partial(of_gpt2, model, "8 prompts") for model in ("gpt2", None))
    assert slices.found_sizes(slices.Sizes(published(), "", ())).note.endswith("Prompts: 8 prompts.")
    assert published().text == "Prompts: 8 prompts."
    assert published(roles=True).text.endswith("Heads of a role are those that the paper names.")
    assert RULE in own(roles=True).text and "on 32 other prompts" in own(roles=True).text
    assert RULE not in own().text and "stood in for GPT-2 small" in own().text


def test_roles_are_found_by_where_heads_look(organism: Model) -> None:
    examples = prompts_for("ioi", organism, 32, 3).examples
    assert len({one.text for one in examples}) == 32
    found = heads_by_role(None, organism, examples)
    best = role_attention(organism, examples, Role("", "END", "S2"))[1:]  # nothing to inhibit is known in layer 0
    layer, head = found["S-inhibition"][0]
    assert best[layer - 1, head] == best.max() >= 0.2
    assert "name mover" not in found  # 1.6 and 1.7 look at S1 as much as at IO


def test_signals_move_attention_more_than_random_channels(tmp_path: Path) -> None:
    found = into(Job(tmp_path, quick=True), "S-inhibition")
    assert found.head in subject(Job(tmp_path, quick=True)).roles["S-inhibition"]
    alone = [one for one in found.effects if not one.together]
    assert {one.mode for one in alone} == {"local", "global"} and {one.side for one in alone} == {"dest", "src"}
    assert all(one.attention < 0 < one.weight and 0 < one.cosine <= 1.0001 for one in alone)
    with pytest.raises(MissingModelError, match="no nothing head, and this figure is about one"):
        subject(Job(tmp_path, quick=True)).role("nothing")


def test_networks_count_prompts() -> None:
    edges = {((0, 1), (1, 6), "dest"): 0.9, ((0, 2), (1, 6), "src"): 0.3}
    network = Network(edges, ((1, 6),), 10)
    assert network.heads(0.5) == {(0, 1), (1, 6)} and len(network.frequent(0.2)) == 2
