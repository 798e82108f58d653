"""Scores from channels, residual streams from writers and logits, on every family: batch and single."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from conftest import prompts_of, tiny_model
from keyhole import KeyholeError, Model
from keyhole.tracing.exactness import Check, check_run
from tiny import EARLY, VARIANTS, Sizes

REFUSED = ("olmo-clip", "mamba", "xglm", *EARLY)
SUPPORTED = [v for v in VARIANTS if v not in REFUSED]
# Their own code never drops to float32 where it matters: LayerNorm in the model's dtype, scores through our function.
STAYS_IN_FLOAT64 = [
    "gpt2",
    "gpt2-inverse-layer",
    "gpt_neox",
    "gpt_neox-sequential",
    "phi",
    "phi-qknorm",
    "starcoder2",
    "stablelm",
    "stablelm-parallel-qknorm",
    "opt",
    "nemotron",
    "falcon",
    "falcon-new",
    "falcon-alibi",
]


def worst(check: Check) -> float:
    return max(check.scores, check.residuals, check.logits)


def check_batch_and_single(model: Model, tolerance: float) -> None:
    prompts = prompts_of(model, 20, 13, 7)
    for prompt, run in zip(prompts, model.run_many(prompts), strict=True):
        assert worst(check_run(run)) < tolerance
        alone = model.run(prompt)
        assert worst(check_run(alone)) < tolerance
        torch.testing.assert_close(run.logits, alone.logits, rtol=0, atol=1e-5 * float(alone.logits.abs().max()))


@pytest.mark.parametrize("variant", SUPPORTED)
def test_exact_in_float32(variant: str) -> None:
    check_batch_and_single(tiny_model(variant), 1e-4)


@pytest.mark.parametrize("variant", [v for v in STAYS_IN_FLOAT64 if v in SUPPORTED])
def test_exact_in_float64(variant: str) -> None:
    check_batch_and_single(tiny_model(variant, dtype=torch.float64), 1e-9)


def test_what_an_early_transformers_keeps_to_itself_is_refused() -> None:
    """Nothing is early from 5.13 on; what earlier versions do is played in test_versions.py, too."""
    assert bool(EARLY) == (Version(transformers.__version__) < Version("5.13"))
    for variant in EARLY:
        if variant != "stablelm-parallel-qknorm":  # which cannot even be made before transformers 5
            with pytest.raises(KeyholeError, match="later version"):
                tiny_model(variant).run([1, 2, 3])


sizes = st.builds(
    Sizes,
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 3, 4, 6]),
    kv_heads=st.sampled_from([1, 2, 3, 6]),
    d_head=st.sampled_from([4, 6, 8, 16]),
    d_model=st.sampled_from([12, 24, 32, 48]),
    window=st.integers(1, 9),
    rotary_fraction=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    biases=st.booleans(),
    seed=st.integers(0, 999),
)


@settings(max_examples=120)
@given(st.sampled_from(SUPPORTED), sizes)
def test_exact_for_any_sizes(variant: str, drawn: Sizes) -> None:
    model = tiny_model(variant, drawn)
    (prompt,) = prompts_of(model, 14)
    assert worst(check_run(model.run(prompt))) < 1e-4


@pytest.mark.parametrize("variant", ["gpt2", "llama", "gemma2", "qwen3"])
def test_half_precision_is_exact_in_float32_and_its_rounding_is_bounded(variant: str) -> None:
    model = tiny_model(variant, dtype=torch.bfloat16)
    check = check_run(model.run(prompts_of(model, 12)[0]))
    assert check.exact and check.tolerance == 1e-4 and check.dtype == "bfloat16"
    assert check.rounding is not None and 1e-3 < check.rounding.typical < 1e-2 and 0.01 < check.rounding.share < 0.5
