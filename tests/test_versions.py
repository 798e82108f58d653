"""Which versions are promised? The docs say what pyproject.toml says; what early ones keep to themselves is refused."""

import contextlib
import doctest
import io
import re
import sys
import tomllib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import keyhole
from conftest import ROOT, tiny_model
from keyhole import KeyholeError
from keyhole.models import attention, capture
from keyhole.models.facts import rope_types
from keyhole.models.mlps import _router
from tiny import tiny

sys.path.insert(0, str(ROOT / "tools"))
import versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def allowed(name: str) -> str:
    """What the docs' table says of one row."""
    text = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^\| {name} \| ([^|]+) \|", text, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("package", versions.CHOSEN)
def test_the_docs_name_the_floor_and_the_ceiling(package: str) -> None:
    (wanted,) = [one for one in PROJECT["dependencies"] if re.match(rf"{package}[<>=]", one)]
    floor, ceiling = re.fullmatch(rf"{package}>=([\d.]+),<([\d.]+)", wanted).groups()
    assert allowed(package) == f"{floor} and later, below {ceiling}"


def test_the_docs_and_the_classifiers_name_the_same_pythons() -> None:
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert allowed("Python") == f"{named[0]} and later" and PROJECT["requires-python"] == f">={named[0]}"
    tested = re.search(r"^\| Python \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs/versions.md").read_text(), re.MULTILINE)
    assert [word.rstrip(",") for word in re.findall(r"3\.\d+", tested[1])] == named


def test_every_dependency_has_a_floor_that_can_be_tried() -> None:
    pinned = versions.pins("oldest", PROJECT["dependencies"], {})
    assert len(pinned) == len(PROJECT["dependencies"]) and all("==" in one for one in pinned)
    assert doctest.testmod(versions).failed == 0
    with pytest.raises(SystemExit, match="no oldest"):
        versions.pins("oldest", ["torch<2.14"], {})
    assert all((ROOT / "tests" / f"{one}.py").is_file() for one in versions.CORE)


def test_an_index_that_cannot_be_reached_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def urlopen(*_: Any, **__: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(versions.urllib.request, "urlopen", urlopen)
    assert versions.cpu_wheels() == [] and "cannot be reached (no network)" in capsys.readouterr().out
    monkeypatch.setattr(versions.urllib.request, "urlopen", lambda *_, **__: io.BytesIO())
    assert versions.cpu_wheels() == ["--extra-index-url", versions.CPU]


def causal(_: Any, __: Any, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (key > query - 3)


def test_positions_of_queries_say_what_length_and_offset_say() -> None:
    """Early versions of transformers give the former."""
    now = attention._visible_intervals(kv_length=5, mask_function=causal, q_length=5)
    assert now.flatten().tolist() == [0, 0, 0, 1, 2]
    for early in ({"cache_position": torch.arange(5)}, {"q_length": 5, "attention_mask": torch.ones(2, 5).bool()}):
        assert torch.equal(attention._visible_intervals(kv_length=5, mask_function=causal, **early), now)
    padded = torch.tensor([[True] * 5, [False] + [True] * 4])
    for wrong in (
        {"cache_position": torch.arange(3, 8)},
        {"cache_position": torch.arange(4)},
        {"q_length": 5, "attention_mask": padded},
    ):
        with pytest.raises(KeyholeError, match="whole prompts"):
            attention._visible_intervals(kv_length=5, mask_function=causal, **wrong)


def test_attention_that_is_not_routed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Nemotron's before transformers 5.13: the model runs, and Keyhole sees nothing of it."""
    monkeypatch.setattr(capture, "recorded", lambda layers: contextlib.nullcontext())
    attention.register()
    with pytest.raises(KeyholeError, match="attention of LlamaAttention in its own way"):
        tiny_model("llama").run([1, 2, 3])


def test_mlps_that_are_elsewhere_are_refused() -> None:
    """As Mixtral's before transformers 5."""
    model = tiny_model("llama")
    moved = replace(model, family=replace(model.family, mlp="block_sparse_moe"))
    with pytest.raises(KeyholeError, match="no 'block_sparse_moe' in LlamaDecoderLayer"):
        moved.run([1, 2, 3])


@pytest.mark.parametrize("odd", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}])
def test_a_scaling_that_is_not_told_is_refused(odd: dict[str, bool]) -> None:
    """Early versions tell GPT-2's under eager attention only."""
    module, q = torch.nn.Module(), torch.zeros(1, 1, 3, 16)
    mask = torch.zeros(1, 1, 3, 1, dtype=torch.long)
    module.scale_attn_by_inverse_layer_idx, module.scale_attn_weights = False, True
    attention._attend_and_record(module, q, q, q, mask)
    assert attention.default_scaling(module, q) == 0.25
    for name, value in odd.items():
        setattr(module, name, value)
    with pytest.raises(KeyholeError, match="later version"):
        attention._attend_and_record(module, q, q, q, mask)
    attention._attend_and_record(module, q, q, q, mask, scaling=0.1)


def test_gemma2_is_compared_with_attention_that_knows_its_softcap() -> None:
    hf = tiny("gemma2")
    hf.config._attn_implementation = "sdpa"
    assert keyhole.check(keyhole.load((hf, None)), [3, 4, 5, 6, 7]).exact
    assert hf.config._attn_implementation == "sdpa"


def test_scaled_rotation_is_found_under_its_earlier_name() -> None:
    """Prompts of other lengths must not be padded to the longest where it sees the length."""
    early = SimpleNamespace(rope_scaling={"type": "longrope", "short_factor": [1.0]}, rope_theta=10.0)
    now = SimpleNamespace(rope_parameters={"full": {"rope_type": "dynamic"}, "local": {"rope_type": "default"}})
    assert rope_types(early) == {"longrope"} and rope_types(now) == {"dynamic", "default"}
    assert rope_types(SimpleNamespace(rope_scaling=None)) == set()


def test_routers_give_weights_of_all_experts_or_of_the_chosen() -> None:
    """gpt-oss did the former before transformers 5; of llama4, a shared expert comes first."""
    sent, chosen = torch.tensor([[0.0, 0.75, 0.0, 0.25]]), (torch.tensor([[0.75, 0.25]]), torch.tensor([[1, 3]]))

    class Router(torch.nn.Module):
        def __init__(self, *told: Any) -> None:
            super().__init__()
            self.told = told

        def forward(self, _: Tensor) -> tuple[Any, ...]:
            return self.told

    early, now, x = Router(sent, chosen[1]), Router(None, *chosen), torch.zeros(1, 8)
    assert torch.equal(_router(early, 4)(x), sent) and torch.equal(_router(now, 4)(x), sent)
    assert torch.equal(_router(early, 5)(x), torch.cat([torch.ones(1, 1), sent], 1))
