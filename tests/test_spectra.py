"""Heads whose spectra are wide: weak channels are kept, null directions are rest, and no term outgrows the scores.

One model per variant with a fault in each layer: keys with a spectrum down to 1e-9; repeated, zero and 4-bit columns;
queries and keys that are both graded, one with a null direction, where singular directions lie askew in head space.
"""

import pytest
import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

import keyhole
from conftest import prompts_of, rich_circuit, tiny_model
from keyhole import KeyholeError, Model
from keyhole.models.weights import split_qkv, submodule
from keyhole.qk.omega import Omega, decompose, omega
from keyhole.tracing.exactness import check_run
from test_exact import SUPPORTED
from tiny import Sizes

WIDE = Sizes(d_head=16)  # with d_model 32 and 4 heads, d_head > d_model / heads wherever the two are free


def columns(model: Model, layer: int) -> tuple[list[Tensor], list[Tensor]]:
    """Views [d_model, d_head] of the model's own query and key weights, head by head."""
    family, dims = model.family, model.dims
    attn = submodule(model.blocks[layer], family.attn)
    found = []
    for name in family.qkv if family.fused is None else family.qkv * 2:
        module = submodule(attn, name)
        W = module.weight if isinstance(module, Conv1D) else module.weight.T
        every = torch.arange(float(W.shape[1]))  # split like weights
        if family.fused is None:
            heads = every.view(-1, dims.d_head)
        else:
            heads = split_qkv(every, family.fused, dims.heads, dims.d_head)[len(found)]
        found.append([W[:, int(own[0]) : int(own[-1]) + 1] for own in heads])
    return found[0], found[1]


def graded(W: Tensor, span: float) -> Tensor:
    """The same directions and size with singular values spaced evenly, on a logarithmic scale, over `span`."""
    U, S, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    return ((U * S[0] * torch.logspace(0, torch.tensor(span).log10(), len(S), dtype=torch.float64)) @ Vh).to(W.dtype)


def four_bits(W: Tensor) -> Tensor:
    step = W.abs().amax(0) / 7
    return (W / step).round() * step


def hard_model(variant: str, dtype: torch.dtype = torch.float32) -> Model:
    model = tiny_model(variant, WIDE, dtype)
    layers = model.attention_layers
    _, keys = columns(model, layers[0])
    for k in keys:
        k.copy_(k * torch.logspace(0, -9, k.shape[1]))  # as columns: float32 keeps their digits, whatever their size
    queries, keys = columns(model, layers[1])
    for W in (*queries, *keys):
        W.copy_(four_bits(W))
    keys[0][:, 1], keys[0][:, 2], keys[0][:, 5] = keys[0][:, 0], 0.0, 2 * keys[0][:, 4]
    queries[-1][:, 3] = 0.0
    queries, keys = columns(model, layers[-1]) if len(layers) > 2 else ([], [])
    for W in (*queries, *keys):
        W.copy_(graded(W, 1e-4))
    for q in queries[:2]:
        q[:, 6] = 0.0
    return model


@pytest.mark.parametrize("variant", SUPPORTED)
def test_wide_spectra_are_exact(variant: str) -> None:
    model = hard_model(variant)
    (prompt,) = prompts_of(model, 14)
    check = check_run(model.run(prompt))
    assert check.exact
    for layer in model.attention_layers:
        om, term = omega(model, layer), check.layers[layer].largest_term
        assert term is not None and 0 < term < 30
        for head, n in enumerate(om.rank.tolist()):
            told = torch.eye(n, dtype=torch.float64)
            # In units of the row's and the column's length: a weak row of G_s is long, its column of G_d short.
            G_s, G_d = om.G_s[head, :n].double(), om.G_d[head, :, :n].double()
            miss = G_d.norm(dim=0)[:, None] * (G_s @ G_d - told).abs() * G_s.norm(dim=1)
            assert float(miss.max()) < 1e-3, (layer, head)
            for directions in (om.u(head), om.v(head)):
                torch.testing.assert_close(directions.double().T @ directions.double(), told, rtol=0, atol=1e-4)
    weak, null = (omega(model, layer) for layer in model.attention_layers[:2])
    assert weak.rank.min() >= model.dims.d_head - 1  # centring QK-norms have one null direction of their own
    assert float((weak.sigma.gather(1, weak.rank[:, None] - 1)[:, 0] / weak.sigma[:, 0]).max()) < 1e-7
    assert int(null.rank[0]) <= model.dims.d_head - 3


@pytest.mark.parametrize("variant", ["gpt2", "llama", "gemma3_text", "phi-qknorm"])
def test_circuits_through_such_heads_hold(variant: str) -> None:
    model = hard_model(variant)
    circuit = rich_circuit(model.run(prompts_of(model, 10)[0]))
    rows = circuit.verify(draws=1).rows
    assert len(circuit.firings) > 1 and rows and all(row.agrees for row in rows)


def test_such_heads_in_half_precision() -> None:
    model = hard_model("gemma3_text", torch.bfloat16)
    assert keyhole.check(model, prompts_of(model, 14)[0]).exact


def low_bit_factors(heads: int = 4, d_model: int = 640, d_head: int = 256) -> tuple[Tensor, Tensor]:
    """A real shape: one KV head, 4-bit weights whose columns span 1e-5 and partly repeat, and gains on both sides."""
    g = torch.Generator().manual_seed(0)
    W_Q, W_K = (torch.randn(n, d_model, d_head, generator=g, dtype=torch.float64) for n in (heads, 1))
    W_K = W_K * torch.logspace(0, -5, d_head, dtype=torch.float64)
    W_Q, W_K = (torch.stack([four_bits(W) for W in each]) for each in (W_Q, W_K))
    W_K[..., 11], W_K[..., 20], W_K[..., 31] = W_K[..., 10], 0.0, 2 * W_K[..., 30]
    gain = 1 + 0.3 * torch.randn(d_model, 1, generator=g, dtype=torch.float64)
    own = 1 + 0.3 * torch.randn(2, d_head, generator=g, dtype=torch.float64)
    return gain * W_Q * own[0], gain * W_K * own[1]


def misses_duality(om: Omega) -> float:
    """|G_s G_d - I| on the channels that are told, in units of the lengths of rows and columns; the worst head."""
    found = []
    for head, n in enumerate(om.rank.tolist()):
        sigma, G_s = om.sigma[head, :n].double(), om.lift_s[head, :, :n].T
        G_d = om.lift_d[head, :, :n] * sigma
        off = (G_s @ G_d).fill_diagonal_(0)  # sigma itself was rounded to float32
        found.append(float((G_d.norm(dim=0)[:, None] * off.abs() * G_s.norm(dim=1)).max()))
    return max(found)


def test_rank_ends_where_columns_depend() -> None:
    W_Q, W_K = low_bit_factors()
    om = decompose(W_Q, W_K, dtype=torch.float32)
    assert om.rank.tolist() == [253] * 4 and misses_duality(om) < 1e-12
    assert 1e-7 < float(om.sigma[0, 252] / om.sigma[0, 0]) < 1e-4
    u, v = om.u(1), om.v(1)
    torch.testing.assert_close(u * om.sigma[1, :253] @ v.T, (W_Q[1] @ W_K[0].T).float(), rtol=1e-4, atol=1e-4)


def test_directions_that_only_cancel_are_rest() -> None:
    """W_Q is blind where W_K is strong, W_K weak where W_Q is strong: these singular directions lie askew."""
    W_Q, W_K = low_bit_factors()
    W_Q[0, :, 44] = 0.0
    W_K = W_K * torch.logspace(0, -4, 256, dtype=torch.float64)
    om = decompose(W_Q, W_K, dtype=torch.float32)
    assert 100 < int(om.rank[0]) < 200 and om.rank[1:].tolist() == [253] * 3  # the others see with all dimensions
    assert misses_duality(om) < 1e-12
    assert not bool(om.G_d[0, :, int(om.rank[0]) :].any()) and not bool(om.G_s[0, int(om.rank[0]) :].any())
    sigma = om.sigma[0, : int(om.rank[0])]
    assert bool((sigma[:-1] >= sigma[1:]).all())
    assert float((om.G_d.norm(dim=1) * om.G_s.norm(dim=2)).max()) < 10 * 256**0.5 * 1.01


def test_a_message_about_a_head_names_its_layer() -> None:
    W_Q, W_K = torch.randn(3, 8, 4), torch.randn(3, 8, 4)
    W_K[1, 0, 0] = float("nan")
    with pytest.raises(KeyholeError, match=r"head 7\.1 has weights that are NaN"):
        decompose(W_Q, W_K, layer=7)
