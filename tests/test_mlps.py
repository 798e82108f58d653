"""MLPs are rebuilt from folded weights, split exactly over the writers of their input, and causes hold on removal."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError, Model
from keyhole.circuits.records import Writer
from keyhole.errors import NothingToTraceError
from keyhole.models.mlps import MlpWeights, Neurons, Shape
from keyhole.tracing.exactness import check
from keyhole.tracing.mlp_attribution import parts_at
from keyhole.tracing.mlp_causes import explain_mlp
from keyhole.tracing.mlp_directions import read_along, toward
from keyhole.tracing.mlp_places import Places, mlp_places, weights_of
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import written_by
from test_exact import SUPPORTED
from tiny import VERSION, tiny

IOI = "When Mary and John went to the store, John gave a drink to"
KINDS = ["gpt2", "llama-bias", "phi3", "gemma2", "olmo2", "cohere", "granite"]
KINDS += ["gpt_oss", "mixtral", "llama4_text", "lfm2"]  # experts, and another mixer
WHOLE = ["qwen3_moe"] if VERSION < (5, 0) else []  # early experts are not stacked, and their MLPs stay whole
READ = [v for v in SUPPORTED if v not in WHOLE]


def direction(run: keyhole.Run, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(run.final_resid.shape[1], generator=generator, dtype=torch.float64)


def places_at(run: keyhole.Run, layer: int, tokens: list[int], *, constants: bool = True) -> Places:
    return mlp_places(Writes([run]), [(0, t) for t in tokens], weights_of(run, layer), layer, constants=constants)


@pytest.mark.parametrize("variant", READ)
def test_every_mlp_is_rebuilt_and_split(variant: str) -> None:
    """From folded weights to 1e-5; along any direction it is offset + slopes to 1e-5, from either baseline."""
    model = tiny_model(variant)
    (prompt,) = prompts_of(model, 12)
    found = check(model, prompt)
    assert found.mlps is not None and found.mlps < 1e-5 and found.exact
    run = model.run(prompt)
    for layer in range(len(run.layers)):
        for constants in (True, False):
            places = places_at(run, layer, [3, 11], constants=constants)
            d = torch.stack([direction(run, layer), direction(run, layer + 9)])
            g, offset = places.back(places.along(d))
            s = (d * places.write(places.x)).sum(1)
            torch.testing.assert_close(offset + (g * (places.x - places.x0)).sum(1), s, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", [v for v in KINDS if v in READ])
def test_writers_of_the_input_make_up_the_write(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 10)[0])
    for layer in (0, 2):
        places = places_at(run, layer, [8], constants=False)
        g, offset = places.back(places.along(direction(run)[None]))
        parts = parts_at(places.stream, places.spots, g, layer=layer, attended=not places.weights.parallel)
        writers = [parts.writer(0, i) for i in range(parts.values.shape[1])]
        assert len(writers) == len(set(writers))
        total = float(offset) + float(parts.values.sum())
        s = float((direction(run)[None] * places.write(places.x)).sum())
        assert total == pytest.approx(s, rel=1e-4, abs=1e-5)
        for writer, value in list(zip(writers, parts.values[0].tolist(), strict=True))[:: max(1, len(writers) // 7)]:
            written = written_by(run, writer, [8])[0].double()
            assert value == pytest.approx(float(written @ g[0]), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("variant", ["gpt2", "llama-bias", "qwen2", "phi"])
def test_writers_and_the_baseline_make_up_the_write(variant: str) -> None:
    """With constants as the baseline, the other writers' parts and the offset are all there is."""
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 10)[0])
    for layer in (0, 2):
        places = places_at(run, layer, [8])
        d = direction(run)[None]
        g, offset = places.back(places.along(d))
        parts = parts_at(places.stream, places.spots, g, layer=layer, attended=not places.weights.parallel)
        total = float(offset) + float(parts.without_constants().values.sum())
        assert total == pytest.approx(float((d * places.write(places.x)).sum()), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    "variant", [v for v in ("gpt2", "nemotron", "llama-bias", "gpt_oss", "mixtral", "gemma2") if v in READ]
)
def test_slopes_are_integrated_gradients(variant: str) -> None:
    """256 gradients along the straight line give the same direction as the closed form."""
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 10)[0])
    places = places_at(run, 1, [7])
    d = direction(run)[None]
    g, _ = places.back(places.along(d))
    steps, total = 256, torch.zeros_like(places.x)
    for step in range(steps):
        x = (places.x0 + (step + 0.5) / steps * (places.x - places.x0)).requires_grad_()
        with torch.enable_grad():
            total += torch.autograd.grad((d * places.write(x)).sum(), x)[0] / steps
    torch.testing.assert_close(g, total, rtol=1e-3, atol=1e-3 * float(total.abs().max()))


def and_neuron(weight: float = 1.0) -> Places:
    """A GELU neuron, at a bias of -1.5, that reads two writers of 1 each."""
    W = torch.tensor([[weight], [weight], [0.0]], dtype=torch.float64)
    own = Neurons(
        W,
        torch.tensor([-1.5]).double(),
        None,
        None,
        torch.eye(1, 3).double(),
        torch.zeros(3).double(),
        Shape(nn.GELU()),
    )
    ones = torch.ones(1, 1, dtype=torch.float64)
    x = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    weights = MlpWeights((own,), None, None, None, parallel=False, gain=1.0)
    nowhere = Writes([tiny_model("gpt2").run([1, 2])])
    return Places(nowhere, (), 0, weights, (0,), x, torch.zeros_like(x), ones, ones, ones)


def test_a_neuron_that_needs_two_writers_names_both() -> None:
    places = and_neuron()
    d = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    s = float((d * places.write(places.x)).sum())
    g, offset = places.back(places.along(d))
    assert (g[0, :2] / s).tolist() == pytest.approx([0.645, 0.645], abs=1e-3) and float(offset) / s == pytest.approx(
        -0.29, abs=0.01
    )
    assert float((d * places.write(places.x - torch.tensor([[1.0, 0.0, 0.0]]))).sum()) < 0  # either alone is not enough


def test_causes_cover_the_write_and_hold_on_removal(organism: Model) -> None:
    run = organism.run(IOI)
    write = run.explain_mlp(3, -1, run.toward("Mary", "John"))
    assert write.error < 1e-5 and write.value > 0
    shares = [cause.part for cause in write.causes]
    assert shares == sorted(shares, reverse=True) and sum(shares) >= 0.8 > sum(shares[:-1])
    assert Writer("head", 1, 6, 14, 2) in [cause.writer for cause in write.causes]  # to <- Mary
    assert abs(write.left) < 0.3 and write.kept > 0.5 and not write.cancels
    told = str(write)
    assert "mlp 3 at 14:to" in told and "head 1.6 (14:to <- 2:Mary)" in told
    every = run.explain_mlp(3, -1, run.toward("Mary", "John"), cover=1.0)
    first = every.causes[: len(write.causes)]
    assert [c.writer for c in first] == [c.writer for c in write.causes] and len(every.causes) > len(write.causes)


def test_the_write_is_the_models_own_and_removal_is_what_the_mlp_does(organism: Model) -> None:
    """The causes taken from the MLP's real input leave what was predicted."""
    run = organism.run(IOI)
    d = run.toward("Mary", "John")
    write = explain_mlp(run, 3, -1, d, constants="causes")
    assert write.value == pytest.approx(float(run.layers[3].mlp[-1].double() @ d), rel=1e-5)
    places = places_at(run, 3, [14], constants=False)
    taken = sum(written_by(run, c.writer, [14])[0].double() for c in write.causes if c.writer is not None)
    block = organism.blocks[3]
    norm = block.ln_2
    x = places.x[0] - taken
    centred = x - x.mean()
    read = norm.weight * centred / places.scale[0, 0] + norm.bias
    with torch.no_grad():
        out = block.mlp(read.float()[None])[0].double()
    chosen = write.offset * write.value if any(c.writer is None for c in write.causes) else 0.0
    assert (float(out @ d) - chosen) / write.value == pytest.approx(write.left, abs=1e-4)


def test_an_answers_direction_is_its_logit(organism: Model) -> None:
    run = organism.run(IOI)
    d = toward(run, "Mary", "John")
    mary, john = (organism.tokenizer.convert_tokens_to_ids(name) for name in ("Mary", "John"))
    out = organism.head_out()
    want = float(run.logits[-1, mary] - run.logits[-1, john]) - float(out.b_U[mary] - out.b_U[john])
    assert float(run.final_resid[-1].double() @ d) == pytest.approx(want, rel=1e-4)


def test_what_a_firing_reads_of_an_mlp_is_its_signal(organism: Model) -> None:
    run = organism.run(IOI)
    for src, why_not, sign in ((2, False, 1.0), (8, True, -1.0)):
        firing = run.explain(head=(1, 6), dest=14, src=src, why_not=why_not)
        read = [s for s in firing.side("dest").signals if s.writer.kind == "mlp"]
        assert read
        for signal in read:
            write = explain_mlp(run, signal.writer.layer, signal.writer.dest, read_along(firing, signal))
            assert write.value == pytest.approx(signal.ig, rel=1e-5)  # as the search counts it
            (wrote,) = written_by(run, signal.writer, [signal.writer.dest]).double()
            assert sign * float(read_along(replace(firing, why_not=False), signal) @ wrote) == pytest.approx(
                signal.ig, rel=1e-5
            )


def test_constants_are_a_baseline_or_causes() -> None:
    model = tiny_model("qwen2")
    run = model.run(prompts_of(model, 10)[0])
    d = direction(run)
    d = d if float(run.layers[1].mlp[8].double() @ d) > 0 else -d
    base, causes = (run.explain_mlp(1, 8, d, cover=1.0, constants=how) for how in ("baseline", "causes"))
    assert base.value == causes.value and base.offset != causes.offset and max(base.error, causes.error) < 1e-4
    assert not any(c.writer is not None and c.writer.kind == "bias" for c in base.causes)


def test_what_cannot_be_explained_is_refused(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    run = organism.run(IOI)
    d = run.toward("Mary", "John")
    with pytest.raises(NothingToTraceError, match="opposite direction"):
        run.explain_mlp(3, -1, -d)
    with pytest.raises(KeyholeError, match=r"cover is 0\.0"):
        run.explain_mlp(3, -1, d, cover=0.0)
    with pytest.raises(KeyholeError, match="no layer 9"):
        run.explain_mlp(9, -1, d)
    monkeypatch.setattr("keyhole.models.mlps.mlp_facts", lambda config: None)
    model = tiny_model("gpt2")
    with pytest.raises(KeyholeError, match="has no facts of the MLPs"):
        model.run([1, 2, 3]).explain_mlp(1, -1, torch.ones(model.dims.d_model))
    found = check(model, [1, 2, 3])
    assert found.mlps is None and found.exact and math.isfinite(found.scores)


def test_an_offset_that_is_a_cause_goes_too(organism: Model) -> None:
    """All causes taken away, the offset among them, leave what was predicted."""
    run = organism.run(IOI)
    for layer in range(4):
        for token in range(2, len(run)):
            d = run.layers[layer].mlp[token].double()  # its own write, of which the offset is often a large part
            write = run.explain_mlp(layer, token, d, cover=1.0, constants="causes")
            if any(cause.writer is None for cause in write.causes):
                places = places_at(run, layer, [token], constants=False)
                taken = [written_by(run, c.writer, [token])[0].double() for c in write.causes if c.writer is not None]
                left = float(d @ places.write(places.x - sum(taken))[0]) - write.offset * write.value
                assert write.left == pytest.approx(left / write.value, abs=1e-6)
                return
    raise AssertionError("no offset is a cause")


def test_an_mlp_that_writes_something_massive_is_rebuilt() -> None:
    """What it reads is not the small difference of two large streams."""
    hf = tiny("llama-bias")
    hf.model.layers[1].mlp.down_proj.weight.mul_(3e4)
    model = keyhole.load((hf, None))
    found = check(model, prompts_of(model, 12)[0])
    assert found.exact and found.mlps is not None and found.mlps < 1e-5


def test_inference_mode_is_no_obstacle(organism: Model) -> None:
    run = organism.run(IOI)
    d = run.toward("Mary", "John")
    with torch.inference_mode():
        inside = run.explain_mlp(3, -1, d)
    assert [c.writer for c in inside.causes] == [c.writer for c in run.explain_mlp(3, -1, d).causes]


def test_an_mlp_that_cannot_be_read_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused for MLPs only, with the reason: circuits end there, heads are traced."""

    def quantised(parameter: torch.Tensor) -> torch.Tensor:
        raise KeyholeError("these experts keep no floating-point weights")

    monkeypatch.setattr("keyhole.models.mlps._stack", quantised)
    model = tiny_model("gpt_oss")
    run = model.run(prompts_of(model, 8)[0])
    circuit = run.trace(int(run.logits[-1].argmax()), metric="linear", through="mlps")
    mlps = [leaf for node, leaf in zip(circuit.nodes, circuit.leaves, strict=True) if node.kind == "mlp"]
    assert mlps and set(mlps) <= {"cannot be read", "pruned", "at the first token"} and not circuit.mlps
    with pytest.raises(KeyholeError, match="no floating-point weights"):
        run.explain_mlp(1, 5, torch.ones(model.dims.d_model))
    assert check(model, [1, 2, 3]).mlps is None


def test_runs_of_several_models_are_refused() -> None:
    runs = [model.run([1, 2, 3]) for model in (tiny_model("gpt2"), tiny_model("gpt2"))]
    with pytest.raises(KeyholeError, match="several models"):
        keyhole.trace_many(runs, [3, 3])
