"""Causes of MLPs taken away in the model's own forward pass leave what was predicted; controls leave nearly all."""

import pytest
import torch

from conftest import prompts_of, tiny_model
from keyhole import Model
from keyhole.intervene.cuts import remove_causes
from keyhole.intervene.removal import Metric
from test_exact import SUPPORTED

IOI = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.parametrize("variant", SUPPORTED)
@pytest.mark.parametrize("constants", ["baseline", "causes"])
def test_what_is_left_is_what_was_predicted(variant: str, constants: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 10)[0])
    d = torch.randn(model.dims.d_model, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    d = d if float(run.layers[1].mlp[8].double() @ d) > 0 else -d
    write = run.explain_mlp(1, 8, d, constants=constants)
    removed = remove_causes(write, Metric(8, (1,)), draws=2)
    assert removed.agrees and removed.left == pytest.approx(write.left, abs=1e-4 * max(1.0, abs(write.left)))
    written = any(cause.writer is not None for cause in write.causes)
    assert abs(removed.metric_after - removed.metric_before) > 1e-4  # an offset that is a cause is taken away, too
    assert len(removed.control_left) == (2 if written else 0)


def test_causes_matter_more_than_other_writers_as_large(organism: Model) -> None:
    run = organism.run(IOI)
    right, wrong = (organism.tokenizer.convert_tokens_to_ids(name) for name in ("Mary", "John"))
    write = run.explain_mlp(3, -1, run.toward("Mary", "John"))
    removed = remove_causes(write, Metric(14, (right,), (wrong,)))
    assert removed.agrees and abs(removed.left) < 0.3 < min(removed.control_left)
    lost = removed.metric_before - removed.metric_after
    assert lost > 5 and lost > 3 * max(abs(removed.metric_before - after) for after in removed.control_metrics)


@pytest.mark.parametrize("variant", ["gptj", "cohere", "phi"])
def test_a_place_with_one_writer_has_no_controls(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 10)[0])
    write = run.explain_mlp(0, 8, run.layers[0].mlp[8].double(), constants="causes")
    removed = remove_causes(write, Metric(9, (1,)))
    assert removed.agrees and removed.control_left == () == removed.control_metrics
