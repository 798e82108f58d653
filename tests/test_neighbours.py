"""Models of nnsight and TransformerLens, by stand-ins that are built as theirs are.

The real ones were tried by hand: nnsight 0.8.1, TransformerLens 3.2.1 and 4.3.0 (docs/versions.md).
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keyhole
from keyhole import KeyholeError
from tiny import tiny


class Component(nn.Module):
    """A module of a bridge: it stands where the model's own stood, hooks around it."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.hook_in, self.hook_out = nn.Identity(), nn.Identity()
        self._original_component = original

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_original_component"), name)

    def forward(self, *args: Any, **options: Any) -> Any:
        return self._original_component(*args, **options)


class TransformerBridge(nn.Module):
    def __init__(self, hf: Any, *, folded: bool = False) -> None:
        super().__init__()
        self.original_model, self.tokenizer, self.folded = hf, None, folded
        for block in hf.transformer.h:
            block.attn.c_attn = Component(block.attn.c_attn)
            block.attn = Component(block.attn)
            block.ln_1 = Component(block.ln_1)
        hf.transformer.h[0].register_forward_hook(lambda *_: None)

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.original_model(ids).logits
        return 2 * logits if self.folded else logits - logits.mean(-1, keepdim=True)  # centred, as theirs may be


class HookedTransformer(nn.Module):
    pass


def test_nnsight_keeps_the_model() -> None:
    hf = tiny("llama")
    model = keyhole.load(SimpleNamespace(_module=hf, tokenizer=None))
    assert model.hf is hf and model.tokenizer is None


def test_nnsight_may_not_have_loaded_it() -> None:
    with pytest.raises(KeyholeError, match="dispatch=True"):
        keyhole.load(SimpleNamespace(_module=tiny("llama").to("meta"), tokenizer=None))


def test_a_bridge_is_taken_out_and_stays_as_it_is() -> None:
    ids = [3, 4, 5, 6]
    with torch.no_grad():
        own = keyhole.load((tiny("gpt2"), None)).run(ids).logits
    bridge = TransformerBridge(tiny("gpt2"))
    before = [type(module) for module in bridge.modules()]
    model = keyhole.load(bridge)
    assert torch.allclose(model.run(ids).logits, own) and keyhole.check(model, ids).exact
    assert not any(isinstance(module, Component) for module in model.hf.modules())
    assert [type(module) for module in bridge.modules()] == before
    block = bridge.original_model.transformer.h[0]
    assert len(block._forward_hooks) == 1 and not model.hf.transformer.h[0]._forward_hooks
    assert model.hf.transformer.h[0].attn.c_attn.weight is block.attn._original_component.c_attn.weight


def test_weights_that_a_bridge_changed_are_refused() -> None:
    with pytest.raises(KeyholeError, match="enable_compatibility_mode"):
        keyhole.load(TransformerBridge(tiny("gpt2"), folded=True))


def test_a_model_that_is_spread_is_refused() -> None:
    """Its forward pass is bound to the modules that are left out."""
    hf = tiny("gpt2")
    hf.transformer.h[0]._hf_hook = object()
    with pytest.raises(KeyholeError, match="spread over devices"):
        keyhole.load(TransformerBridge(hf))


def test_what_has_no_model_inside_is_refused() -> None:
    with pytest.raises(KeyholeError, match="no Hugging Face model inside"):
        keyhole.load(HookedTransformer())
    with pytest.raises(KeyholeError, match="pair"):
        keyhole.load(tiny("gpt2"))
    with pytest.raises(KeyholeError, match="a dict is no model"):
        keyhole.load({})
    with pytest.raises(KeyholeError, match="taken as it is"):
        keyhole.load(SimpleNamespace(_module=tiny("llama"), tokenizer=None), revision="main")
