"""Adapters and quantised kernels: what a projection computes is read whatever module it is, or refused with numbers."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import Tensor, nn

import keyhole
from conftest import tiny_model
from keyhole import KeyholeError
from keyhole.errors import MissingModelError
from keyhole.models.affine import affine_error, projections
from keyhole.models.effective import dense_copy, effective, embedded, is_dense, matrix_of
from keyhole.models.stored import parts_of
from tiny import Sizes, tiny

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")  # on tied weights, and bases without a vocabulary
IDS = [3, 14, 15, 9, 26, 5, 7, 7, 3, 14]
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(variant: str, targets: list[str], **choices: object) -> nn.Module:
    """A tiny model with a random adapter, as PEFT wraps it."""
    base = tiny(variant)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = LoraConfig(r=3, lora_alpha=9, lora_dropout=0.5, init_lora_weights=False, target_modules=targets)
        for name, value in choices.items():
            setattr(config, name, value)
        wrapped = get_peft_model(base, config).eval()
        for name, parameter in wrapped.named_parameters():
            if "magnitude" in name or "modules_to_save" in name:  # those of DoRA begin where they change nothing
                parameter.data *= 1 + 0.3 * torch.rand_like(parameter)
            if "lora_B" in name and name.endswith("bias"):
                parameter.data.normal_()
    return wrapped


ADAPTED = {
    "llama": ("llama", LLAMA, {}),
    "llama, DoRA": ("llama", LLAMA, {"use_dora": True}),
    "llama, bias of B": ("llama-bias", LLAMA, {"lora_bias": True}),
    "gpt2, fused": ("gpt2", ["c_attn", "c_proj", "c_fc"], {"fan_in_fan_out": True, "modules_to_save": ["lm_head"]}),
    "opt, its unembedding": ("opt", ["q_proj", "out_proj", "fc1", "fc2", "lm_head"], {}),
    "qwen3, a norm": ("qwen3", ["q_proj"], {"modules_to_save": ["q_norm", "input_layernorm"]}),
    "bloom": ("bloom", ["query_key_value", "dense"], {}),
}


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_are_read_without_being_merged(name: str) -> None:
    variant, targets, choices = ADAPTED[name]
    wrapped = adapted(variant, targets, **choices)
    model = keyhole.load((wrapped, None))
    check = keyhole.check(model, IDS)
    assert check.exact and check.tolerance == 1e-4, check
    logits = model.run(IDS).logits
    assert float((logits - tiny_model(variant).run(IDS).logits).abs().max()) > 0.01 * float(logits.abs().max())


@pytest.fixture(scope="module")
def llama() -> SimpleNamespace:
    wrapped = adapted("llama", LLAMA)
    model = keyhole.load((wrapped, None))
    return SimpleNamespace(wrapped=wrapped, model=model, run=model.run(IDS))


def test_circuits_of_an_adapter_verify_and_edit(llama: SimpleNamespace) -> None:
    """The same circuit as with the adapter merged, and the same predictions of what removals and edits do."""
    merged = keyhole.load((adapted("llama", LLAMA).merge_and_unload(), None)).run(IDS)
    ours, theirs = llama.run.trace(), merged.trace()
    assert ours.nodes == theirs.nodes and len(ours.edges) > 5
    assert [edge.weight for edge in ours.edges] == pytest.approx([edge.weight for edge in theirs.edges], abs=1e-4)
    verified = ours.verify(draws=1)
    assert verified.rows and all(row.agrees is not False for row in verified.rows)
    assert ours.effects().measured is not None
    signals = [(one, other) for one, other in zip(ours.edges, theirs.edges, strict=True) if one.side in ("dest", "src")]
    assert signals
    for mine, other in signals[:4]:
        after = llama.run.with_edits([mine.edit(factor=0)]).logits
        torch.testing.assert_close(after, merged.with_edits([other.edit(factor=0)]).logits, rtol=0, atol=1e-4)
        assert not torch.equal(after, llama.run.logits)


def test_switching_an_adapter_changes_the_model(llama: SimpleNamespace) -> None:
    """Off, it is its base; on again, what was folded before counts again; merged, it is not counted twice."""
    model, run, before = llama.model, llama.run, llama.model.fingerprint()
    run.trace()
    plain = tiny_model("llama").run(IDS).logits
    with llama.wrapped.disable_adapter():
        assert keyhole.check(model, IDS).exact and torch.equal(model.run(IDS).logits, plain)
        assert model.fingerprint() != before
        with pytest.raises(KeyholeError, match="weights have changed since this run was made"):
            run.trace()
    assert model.fingerprint() == before and run.trace().nodes
    llama.wrapped.merge_adapter()
    try:
        assert keyhole.check(model, IDS).exact
        torch.testing.assert_close(model.run(IDS).logits, run.logits, rtol=0, atol=1e-4)
    finally:
        llama.wrapped.unmerge_adapter()


def test_of_several_adapters_those_in_use_count() -> None:
    wrapped = adapted("llama", ["q_proj", "down_proj"])
    torch.manual_seed(2)
    wrapped.add_adapter("second", LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj", "o_proj"]))
    model, logits, prints = keyhole.load((wrapped, None)), [], set()
    for names in ("default", "second", ["default", "second"]):
        wrapped.base_model.set_adapter(names)
        assert keyhole.check(model, IDS).exact
        logits.append(model.run(IDS).logits)
        prints.add(model.fingerprint())
    assert len(prints) == 3 and not torch.equal(logits[0], logits[2]) and not torch.equal(logits[1], logits[2])
    before = model.folded(0).W_Q
    model.hf.get_submodule("model.layers.0.self_attn.q_proj").scaling["second"] *= 2
    assert not torch.equal(model.folded(0).W_Q, before) and keyhole.check(model, IDS).exact


def test_an_embedding_with_an_adapter() -> None:
    wrapped = adapted("llama", ["embed_tokens"])
    model = keyhole.load((wrapped, None))
    rows = embedded(model.hf.get_input_embeddings(), IDS)
    assert torch.equal(rows, model.run(IDS).layers[0].resid) and keyhole.check(model, IDS).exact
    assert not torch.equal(rows, tiny("llama").get_input_embeddings().weight[IDS])


# Folders.


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, an adapter that names it, one that names nothing, and some of other models."""
    place = tmp_path_factory.mktemp("adapters")
    tiny("llama").save_pretrained(place / "base")
    for name, base, variant, sizes, targets in (
        ("lora", "../base", "llama", Sizes(), LLAMA),
        ("unnamed", "", "llama", Sizes(), LLAMA),
        ("moved", "./nowhere", "llama", Sizes(), LLAMA),
        ("deeper", "../base", "llama", Sizes(layers=4), LLAMA),
        ("flatter", "../base", "llama", Sizes(layers=2), LLAMA),
        ("wider", "../base", "llama", Sizes(mlp=64), LLAMA),
        ("gpt2", "../base", "gpt2", Sizes(), ["c_attn"]),
    ):
        torch.manual_seed(1)
        config = LoraConfig(r=3, lora_alpha=9, init_lora_weights=False, target_modules=targets)
        wrapped = get_peft_model(tiny(variant, sizes), config)
        wrapped.peft_config["default"].base_model_name_or_path = base
        wrapped.save_pretrained(place / name)
    prompts = get_peft_model(tiny("llama"), PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    prompts.save_pretrained(place / "prompts")
    (place / "damaged").mkdir()
    (place / "damaged" / "adapter_config.json").write_text("{")
    return place


def test_adapters_are_loaded_with_their_base(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given beside it, by a folder that names it, and by the name that a model then has; nothing of it is kept."""
    monkeypatch.setenv("KEYHOLE_CACHE", str(folders / "cache"))
    both = keyhole.load(folders / "base", adapter=folders / "lora")
    assert both.name == f"{folders / 'base'} with {folders / 'lora'}"
    for model in (keyhole.load(folders / "lora"), keyhole.load(adapter=folders / "lora"), keyhole.load(both.name)):
        assert model.fingerprint() == both.fingerprint() and keyhole.check(model, IDS).exact
    unnamed = keyhole.load(folders / "base", adapter=folders / "unnamed")
    assert unnamed.fingerprint() == both.fingerprint() != keyhole.load(folders / "base").fingerprint()
    assert not (folders / "cache").exists()


REFUSED = [
    ("base", "deeper", r"deeper does not fit .*base: it has weights for .*layers\.3\.\S* and 13 more, which the model"),
    ("base", "flatter", r"flatter does not fit .*base: it has no weights for .*layers\.2\.\S* and 13 more\."),
    ("base", "wider", r"wider does not fit .*base: size mismatch for .*mlp.*48, 3"),
    ("base", "gpt2", r"gpt2 does not fit .*base: Target modules .*c_attn.* not found"),
    ("base", "prompts", "type PROMPT_TUNING, which adds tokens or keys of its own instead of changing weights"),
    ("base", "base", "base is no adapter: it is no folder with an adapter_config.json"),
    ("base", "nobody", "nobody is no adapter"),
    ("lora", "lora", "is an adapter itself"),
    ("unnamed", None, "names no base model: give it, as keyhole.load"),
    ("moved", None, r"changes the model \./nowhere, which is not there: give its base"),
    ("damaged", None, r"damaged.adapter_config\.json cannot be read: it is not valid JSON"),
]


@pytest.mark.parametrize(("source", "adapter", "message"), REFUSED)
def test_adapters_that_do_not_fit_are_refused(source: str, adapter: str | None, message: str, folders: Path) -> None:
    with pytest.raises(KeyholeError, match=message) as refused:
        keyhole.load(folders / source, adapter=None if adapter is None else folders / adapter)
    assert "\n" not in str(refused.value) and not isinstance(refused.value, MissingModelError)


def test_models_in_hand_take_no_adapter(folders: Path) -> None:
    with pytest.raises(KeyholeError, match="and adapter do not apply"):
        keyhole.load((tiny("llama"), None), adapter=folders / "lora")
    with pytest.raises(KeyholeError, match="must be a pair"):
        keyhole.load(adapted("llama", ["q_proj"]))
    prompts = get_peft_model(tiny("llama"), PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    with pytest.raises(KeyholeError, match="type PROMPT_TUNING"):
        keyhole.load((prompts, None))


# Quantised kernels.


class Packed(nn.Linear):
    """Weights in 8 bits with a scale per row, expanded when it computes; as several libraries do."""

    rounds_input = False

    def __init__(self, dense: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = dense.in_features, dense.out_features, dense.bias
        scale = dense.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("packed", (dense.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        if self.rounds_input:
            step = x.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 127
            x = (x / step).round() * step
        return nn.functional.linear(x, self.packed.to(x.dtype) * self.scale.to(x.dtype), self.bias)


class RoundsInput(Packed):
    rounds_input = True


def packed(kind: type[Packed], variant: str = "llama-bias") -> nn.Module:
    hf = tiny(variant)
    for name, module in list(hf.named_modules()):
        if isinstance(module, nn.Linear) and name != "lm_head":
            hf.set_submodule(name, kind(module))
    return hf


@pytest.fixture(scope="module")
def kernels() -> keyhole.Model:
    return keyhole.load((packed(Packed), None))


def test_quantised_kernels_are_asked_for_their_weights(kernels: keyhole.Model) -> None:
    """The circuit is that of a dense model with the same weights, and removals are as predicted."""
    dense = tiny("llama-bias")
    for name, module in kernels.hf.named_modules():
        if isinstance(module, Packed):
            dense.get_submodule(name).weight.data = module.packed * module.scale
    other = keyhole.load((dense, None))
    assert keyhole.check(kernels, IDS).exact and kernels.fingerprint() != other.fingerprint()
    ours, theirs = kernels.run(IDS).trace(), other.run(IDS).trace()
    assert ours.nodes == theirs.nodes
    assert [edge.weight for edge in ours.edges] == pytest.approx([edge.weight for edge in theirs.edges], abs=1e-4)
    assert all(row.agrees is not False for row in ours.verify(draws=1).rows)
    module = kernels.hf.get_submodule("model.layers.1.self_attn.q_proj")
    torch.testing.assert_close(matrix_of(module), matrix_of(dense.get_submodule("model.layers.1.self_attn.q_proj")))


@pytest.mark.parametrize("made", [lambda: adapted("gpt2", ["c_attn", "c_fc"]), lambda: packed(Packed)])
def test_a_dense_copy_computes_the_same(made: Callable[[], nn.Module]) -> None:
    model = keyhole.load((made(), None))
    copied = keyhole.load((dense_copy(model.hf), None))
    assert all(is_dense(module) for _, module in projections(copied.hf, copied.family))
    torch.testing.assert_close(copied.run(IDS).logits, model.run(IDS).logits, rtol=0, atol=1e-4)
    assert copied.run(IDS).logits.dtype == torch.float32 and keyhole.check(copied, IDS).exact


def test_scales_of_a_kernel_are_weights(kernels: keyhole.Model) -> None:
    run, before = kernels.run(IDS), kernels.fingerprint()
    scale = kernels.hf.get_submodule("model.layers.1.mlp.down_proj").scale
    scale *= 2
    try:
        with pytest.raises(KeyholeError, match="weights have changed since this run was made"):
            run.trace()
        assert kernels.fingerprint() != before and keyhole.check(kernels, IDS).exact
    finally:
        scale /= 2


def test_kernels_that_round_what_they_read_are_refused_with_both_numbers() -> None:
    model = keyhole.load((packed(RoundsInput), None))
    with pytest.raises(
        KeyholeError, match=r"q_proj \(RoundsInput\) cannot be read as a weight: .* by (.*) of its"
    ) as no:
        model.run(IDS)
    assert "explains 1.0e-04" in str(no.value)
    module = model.hf.get_submodule("model.layers.0.mlp.up_proj")
    x = torch.randn(5, module.in_features)
    assert 1e-3 < affine_error(module, x, module(x)) < 0.05


def test_a_kernel_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Packed(nn.Linear(4, 3))
    monkeypatch.setattr(Packed, "forward", lambda self, x: torch.ops.no.kernel(x))
    with pytest.raises(KeyholeError, match=r"a Packed cannot be read: it does not run by itself \(.*Load the model"):
        effective(module)
    with pytest.raises(KeyholeError, match="a ReLU is no projection that Keyhole can read"):
        effective(nn.ReLU())


class Codes(nn.Parameter):
    """A weight in 8 bits whose scale its module keeps: torch would expand it to the codes."""


class Coded(Packed):
    def __init__(self, dense: nn.Linear) -> None:
        super().__init__(dense)
        self.weight = Codes(self.packed, requires_grad=False)


def test_codes_are_no_weights() -> None:
    dense = nn.Linear(6, 4).requires_grad_(False)
    module = Coded(dense)
    assert torch.equal(module.weight.dequantize(), module.packed.float())
    torch.testing.assert_close(effective(module).W, dense.weight.T, rtol=0, atol=0.01)


class Halves(torch.Tensor):
    """A weight that a library keeps in two tensors, and adds up when it computes."""

    @staticmethod
    def __new__(cls, high: Tensor, low: Tensor) -> "Halves":
        return torch.Tensor._make_wrapper_subclass(cls, high.shape, dtype=torch.float32)  # type: ignore[attr-defined]

    def __init__(self, high: Tensor, low: Tensor) -> None:
        self.high, self.low = high, low

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["high", "low"], None

    def dequantize(self) -> Tensor:
        return self.high.float() + self.low.float()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is nn.functional.linear:
            return function(args[0], args[1].dequantize(), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is torch.ops.aten.detach.default:
            return Halves(args[0].high, args[0].low)
        raise NotImplementedError(f"no kernel for {function}")


def test_weights_that_a_library_packs_are_expanded_by_it() -> None:
    hf = tiny("llama")
    for _, module in projections(hf, keyhole.load((tiny("llama"), None)).family):
        high = module.weight.detach().half()
        weight = Halves(high, (module.weight.detach() - high.float()).half())
        module.weight = nn.Parameter(weight, requires_grad=False)
    model, plain = keyhole.load((hf, None)), tiny_model("llama")
    assert not is_dense(model.hf.model.layers[0].self_attn.q_proj) and len(list(parts_of(weight))) == 2
    assert keyhole.check(model, IDS).exact and model.run(IDS).trace().nodes == plain.run(IDS).trace().nodes
    run, before = model.run(IDS), model.fingerprint()
    hf.model.layers[2].mlp.up_proj.weight.high.mul_(1.5)
    assert model.fingerprint() != before and keyhole.check(model, IDS).exact
    with pytest.raises(KeyholeError, match="weights have changed"):
        run.trace()
