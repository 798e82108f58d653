"""What stands in for writers: means without the prompt itself, patching, a resting state that is kept; and refusals."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import tiny_model
from keyhole import KeyholeError, Model, Run, cache
from keyhole.faithfulness.baseline import LEAST, Baseline, baseline, exchanged, mean_of, resting
from keyhole.faithfulness.effects import out_of
from keyhole.faithfulness.masked import masked
from keyhole.faithfulness.shares import question
from keyhole.faithfulness.token_masks import all_but, everything
from keyhole.intervene import Metric
from keyhole.tasks import ioi
from keyhole.tasks.catalogue import counterfactual, like
from keyhole.tasks.example import Example

MODULE = sys.modules["keyhole.faithfulness.baseline"]  # the package calls its function so
PROMPT = "When Mary and John went to the store, John gave a drink to"


def written(model: Model, ids: list[int] | tuple[int, ...]) -> Tensor:
    with torch.no_grad():
        return masked([model.run(list(ids), bos=False)]).written()[:, 0]


@pytest.fixture(scope="module")
def example() -> Example:
    return ioi(1, 5)[0]


@pytest.fixture(scope="module")
def run(organism: Model, example: Example) -> Run:
    return organism.run(example.text)


@pytest.fixture(scope="module")
def others(organism: Model, example: Example) -> list[Example]:
    return like(example, organism, 12)


def test_a_mean_leaves_this_prompt_out(organism: Model, run: Run, example: Example, others: list[Example]) -> None:
    """Given as examples, texts or token ids, twice or not."""
    plain = torch.stack([written(organism, organism.run(other.text).token_ids) for other in others])
    texts = [other.text for other in others]
    ids = [list(organism.run(text).token_ids) for text in texts]
    for given in (others, [example, *others], [*texts, *texts, example.text], ids):
        mean = baseline(run, like=given)
        assert torch.allclose(mean.writes, plain.mean(0), atol=1e-5)
        assert mean.name == str(mean) == "the mean of 12 prompts like this one" and mean.kind == "mean"
        assert not mean.note and mean.prompts == tuple(tuple(one) for one in ids)
    other = organism.run(others[3].text)
    own = exchanged(run, mean, other)  # as if that one had been asked
    left = torch.cat([plain[:3], plain[4:], written(organism, run.token_ids)[None]]).mean(0)
    assert torch.allclose(own.writes, left, atol=1e-5) and own.prompts == mean.prompts


def test_a_mean_does_not_depend_on_how_many_fit(
    run: Run, others: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    together, done = mean_of(run, others), []
    monkeypatch.setattr(MODULE, "FLOATS", 1)
    alone = mean_of(run, others, progress=lambda *told: done.append(told))
    assert torch.allclose(alone.writes, together.writes, atol=1e-6) and done[-1] == (12, 12) and len(done) == 12


def test_prompts_of_another_template_are_noted(run: Run, organism: Model, others: list[Example]) -> None:
    unlike = [[*run.token_ids[:1], *np.random.default_rng(i).integers(5, 400, len(run) - 1).tolist()] for i in range(9)]
    found = baseline(run, like=unlike)
    assert "tokens in common" in found.note and "poor baseline" in found.note
    assert not baseline(run, like=others).note


def test_a_counterfactual_is_patching(organism: Model, run: Run, example: Example) -> None:
    """All writers at it are that prompt; one word of it is the prompt with that word."""
    ids = list(run.token_ids)
    at = max(i for i, token in enumerate(ids) if ids.count(token) > 1)
    third = next(t for t in range(60, 400) if t not in ids)
    other = [*ids[:at], third, *ids[at + 1 :]]
    found = baseline(run, counterfactual=other)
    assert found.kind == "counterfactual" and found.name.startswith("the prompt '")
    assert torch.allclose(found.writes, written(organism, other), atol=1e-5)
    metric = Metric(len(run) - 1, (ids[1],), (ids[3],))
    asked = question(run, metric, found)
    patched = metric.of(organism.run(other, bos=False).logits[-1])
    assert asked.ends == pytest.approx((metric.of(run.logits[-1]), patched), abs=1e-4)
    assert asked.answers([everything(0.0), all_but(out_of(asked.masked.wiring, 0, at))]) == pytest.approx(
        [patched, patched], abs=1e-4
    )
    elsewhere = all_but(out_of(asked.masked.wiring, 0, at - 1))  # the word before is the same in both
    assert asked.answers([elsewhere]) == pytest.approx([metric.of(run.logits[-1])], abs=1e-4)
    named = baseline(run, counterfactual=counterfactual(example, organism))
    assert named.writes.shape == found.writes.shape and named.name != found.name


def test_the_resting_state_is_a_mean_over_text_with_the_first_token_apart(
    organism: Model, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "cache"))
    lines = [other.text for other in ioi(10, 9)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(["John gave", "", *lines]))
    found = resting(run, text)
    plain = [written(organism, organism.run(line).token_ids[:24]) for line in lines]
    assert torch.allclose(found.writes[:, 0], torch.stack([one[:, 0] for one in plain]).mean(0), atol=1e-5)
    rest = torch.cat([one[:, 1:] for one in plain], 1).mean(1)
    for token in (1, len(run) - 1):
        assert torch.allclose(found.writes[:, token], rest, atol=1e-5)
    text.write_text("\n".join([other.text for other in ioi(10, 11)]))
    assert not torch.allclose(resting(run, text).writes, found.writes, atol=1e-3)  # another text of the same name
    assert len(cache.entries()) == 2
    assert resting(run).name == "the resting state" and found.name == "the resting state in text.txt"
    text.write_text(" \n")
    with pytest.raises(KeyholeError, match="there is no text in "):
        resting(run, text)  # and not the resting state without a text, which has just been kept


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_the_resting_state_is_kept_by_weights(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is loaded again finds it; one with other weights does not. Without a text, models write one."""
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "cache"))
    calls: list[object] = []
    original = MODULE._pieces
    monkeypatch.setattr(MODULE, "_pieces", lambda *args: calls.append(args) or original(*args))
    model, again = tiny_model(variant), tiny_model(variant)
    first = baseline(model.run([1, 2, 3]), like="resting")
    assert baseline(model.run([4, 5, 6, 7]), like="resting").writes.shape[1] == 4 and len(calls) == 1
    kept = baseline(again.run([1, 2, 3]), like="resting")
    assert torch.equal(kept.writes, first.writes) and len(calls) == 1 and kept.kind == "resting"
    with torch.no_grad():
        next(again.hf.parameters()).add_(0.01)
    assert not torch.equal(baseline(again.run([1, 2, 3]), like="resting").writes, first.writes) and len(calls) == 2


def test_what_is_no_baseline_is_refused_in_a_sentence(
    organism: Model, run: Run, example: Example, others: list[Example], tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text(f"{PROMPT}\n" * (LEAST - 1))
    bad: list[tuple[dict[str, object], str]] = [
        ({"like": others[:7]}, "at least 8 different prompts like this one, itself left out: these are 7"),
        ({"like": [example] * 20}, "these are 0"),
        ({"like": [*others, "Mary and John"]}, "as many tokens, .*'Mary and John' has"),
        ({"like": "zero"}, "'words' or 'resting', and not 'zero'"),
        ({"like": [*others[:8], "Quixotic zebras"]}, "Quixotic"),
        ({"counterfactual": "Mary and John"}, "has [0-9]+ tokens, and this one"),
        ({"counterfactual": example}, "is this prompt itself"),
        ({"counterfactual": example, "like": others}, "one baseline at a time"),
        ({"text": few}, "has 7 lines of at least 6 tokens"),
        ({"text": tmp_path / "missing.txt"}, "missing.txt"),
    ]
    for given, message in bad:
        with pytest.raises(KeyholeError, match=message) as refused:
            baseline(run, **given)  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)


def test_a_gap_below_one_logit_is_said_and_not_divided_by(organism: Model, run: Run, others: list[Example]) -> None:
    metric = Metric(len(run) - 1, (run.token_ids[2],), (run.token_ids[4],))
    asked = question(run, metric, Baseline("mean", "itself", written(organism, run.token_ids)))
    assert asked.ends[0] == pytest.approx(asked.ends[1], abs=1e-4)
    from keyhole.faithfulness.search import Search, search

    with pytest.raises(KeyholeError, match="a gap of less than 1 cannot be shared out"):
        search(Search(asked.masked, metric, replace(asked.shares), asked.reach))
    with pytest.raises(KeyholeError, match="goes on after the token"):
        question(run, replace(metric, end=3), asked.baseline)
    with pytest.raises(KeyholeError, match="trace it with a target"):
        question(run, Metric(len(run) - 1), asked.baseline)
