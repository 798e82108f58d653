"""Is a projection the affine map that Keyhole reads? Compared with the module itself, on what the prompt gives it.

    module(x) = x W + b   for every x that the prompt brings

Dense projections compute that by definition. A kernel that also quantises what it reads does not, nor does an adapter
that looks at other tokens: such a model is refused, with its error and with what rounding explains.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from keyhole.errors import KeyholeError
from keyhole.models.effective import effective, forget, is_dense
from keyhole.models.facts import mlp_facts
from keyhole.models.families import Family
from keyhole.models.numbers import tolerance_of
from keyhole.models.stored import in_use
from keyhole.models.weights import optional, submodule

_TOKENS = 64  # of a batch, at most, at which a module is compared
_ROUNDING = {torch.float16: 2**-10, torch.bfloat16: 2**-7}  # by kernels in half precision, relative to a token's size


def projections(hf: Any, family: Family) -> Iterator[tuple[str, nn.Module]]:
    """Every projection whose weights Keyhole reads, by its name; experts are stacked and no projections."""
    facts = mlp_facts(hf.config)
    for number, block in enumerate(submodule(hf, family.layers).children()):
        paths = [f"{family.attn}.{name}" for name in (*family.qkv, family.out)]
        if facts is not None:
            holders = [facts.module] + ([f"{facts.module}.{facts.experts.shared}"] if facts.experts else [])
            names = [name for name in (facts.gate, facts.up, facts.out) if name is not None]
            paths += [f"{holder}.{name}".lstrip(".") for holder in holders for name in names]
        for path in paths:
            if (module := optional(block, path)) is not None:
                yield f"{family.layers}.{number}.{path}", module
    yield "the unembedding", hf.get_output_embeddings()


def comparing(hf: Any, family: Family, *, keep: bool = True) -> Callable[[ExitStack, Any], None] | None:
    """Hooks that compare all projections that are not dense, for `capture`; None where there are none.

    Without `keep`, weights that had to be computed are dropped again, one projection after the other.
    """
    others = [(name, module) for name, module in projections(hf, family) if not is_dense(module)]
    if not others:
        return None

    def prepare(stack: ExitStack, layers: Any) -> None:
        for name, module in others:

            def compare(module: nn.Module, args: tuple[Any, ...], out: Any, name: str = name) -> None:
                require_affine(name, module, args[0], out)
                if not keep:
                    forget(module)

            # prepended: edits that were there before change the output, and the module did not compute that
            stack.callback(module.register_forward_hook(compare, prepend=True).remove)

    return prepare


def require_affine(name: str, module: nn.Module, x: Float[Tensor, "*rows in"], out: Float[Tensor, "*rows out"]) -> None:
    """Refuse a module whose output is not x W + b, within what rounding in its precision explains."""
    x, out = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
    at = slice(None, None, max(1, -(-len(x) // _TOKENS)))
    error = affine_error(module, x[at], out[at])
    tolerance = _ROUNDING.get(out.dtype, tolerance_of(out.dtype))
    if not error <= tolerance:
        dtype = str(out.dtype).removeprefix("torch.")
        raise KeyholeError(
            f"{name} ({type(in_use(module)).__name__}) cannot be read as a weight: on this prompt its output differs "
            f"from x W + b by {error:.1e} of its size, and rounding in {dtype} explains {tolerance:.1e}. Kernels that "
            "quantise what they read, or compute in half precision, do this: load the model without them, or call "
            "hf_model.dequantize() first."
        )


def affine_error(module: nn.Module, x: Float[Tensor, "rows in"], out: Float[Tensor, "rows out"]) -> float:
    """The largest difference between a module's output and x W + b at any token, relative to the output's length.

    >>> x = torch.eye(2)
    >>> affine_error(nn.Linear(2, 2, bias=False).requires_grad_(False), x, torch.zeros(2, 2)) > 1
    True
    """
    affine = effective(module)
    W = affine.W.to(out.device)
    expected = x.to(W) @ W + affine.bias().to(W)
    missed = (expected - out.to(expected)).norm(dim=-1)
    return float((missed / out.to(expected).norm(dim=-1).clamp_min(1e-30)).max())
