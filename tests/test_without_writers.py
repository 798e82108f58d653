"""Writers that write nothing: what the model answers then is what a model without them answers."""

import pytest
import torch

from conftest import prompts_of, tiny_model
from keyhole import KeyholeError
from keyhole.circuits.records import Writer
from keyhole.intervene import Metric, answers_without
from keyhole.tracing.writers import written_by


@pytest.mark.parametrize("variant", ["gpt2", "llama", "gemma2", "granite"])
def test_an_mlp_without_weights_writes_nothing(variant: str) -> None:
    """The last layer's MLP, gone at the last token, leaves the logits of the stream before it."""
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 7)[0], bos=False)
    last, end = len(run.layers) - 1, len(run) - 1
    metric = Metric(end, (3,), (5,))
    (got,) = answers_without(run, [[Writer("mlp", last, None, end, end)]], metric)
    hf = model.hf
    with torch.no_grad():
        resid = run.final_resid[end] - run.layers[last].mlp[end]
        norm = dict(hf.named_modules())[{"gpt2": "transformer.ln_f"}.get(variant, "model.norm")]
        logits = hf.get_output_embeddings()(norm(resid))
        if variant == "gemma2":
            cap = hf.config.final_logit_softcapping
            logits = cap * torch.tanh(logits / cap)
        if variant == "granite":
            logits = logits / hf.config.logits_scaling
    assert got == pytest.approx(float(logits[3] - logits[5]), abs=1e-5)


def test_a_writer_may_write_something_else_instead() -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    run = model.run(prompts_of(model, 6)[0], bos=False)
    metric = Metric(5, (1,), (2,))
    head = Writer("head", 1, 0, 5, 2)
    same, gone = answers_without(run, [[head], []], metric, instead={head: written_by(run, head, [5])[0]})
    assert same == pytest.approx(gone, abs=1e-6) == metric.of(run.logits[5])
    (without,) = answers_without(run, [[head]], metric)
    assert abs(without - gone) > 1e-4


def test_an_offset_is_written_by_nobody() -> None:
    model = tiny_model("gpt2")
    run = model.run(prompts_of(model, 6)[0], bos=False)
    with pytest.raises(KeyholeError, match="written nowhere"):
        answers_without(run, [[Writer("mlp_offset", 1, None, 5, 5)]], Metric(5, (1,)))
