"""Models: where they come from, which architectures there are, and what happens in one forward pass.

`keyhole.load` makes a Model; `model.run(prompt)` a Run, with an AttentionRun for every layer that attends. Names are
imported when they are first used, since `keyhole.tasks` needs light modules of this package and not torch.

model.py, run.py                 Model: facts, folded weights, running prompts; Run: what happened in one forward pass
load.py, gguf.py                 where a model comes from
tokens.py, chat.py               how a text or a chat becomes tokens, and where these stand
families.py, facts.py            where each architecture keeps its weights, and what else differs
weights.py, mlps.py              what weights read and write once norms are folded in
attention.py, capture.py, stacks.py   how a forward pass becomes a record
numbers.py                       precise enough, finite, exact, unchanged?
organism/                        the built-in model: weights, tokenizer, model card
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyhole.models.families import Family as Family
    from keyhole.models.model import Model as Model
    from keyhole.models.run import AttentionRun as AttentionRun
    from keyhole.models.run import LayerRun as LayerRun
    from keyhole.models.run import Run as Run
    from keyhole.models.tokens import tokens_like as tokens_like

__all__ = ["AttentionRun", "Family", "LayerRun", "Model", "Run", "tokens_like"]

_HOMES = {
    "AttentionRun": "run",
    "Family": "families",
    "LayerRun": "run",
    "Model": "model",
    "Run": "run",
    "tokens_like": "tokens",
}

if not TYPE_CHECKING:  # as in `keyhole` itself

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'keyhole.models' has no attribute {name!r}")
        return getattr(import_module(f"keyhole.models.{_HOMES[name]}"), name)
