"""Along which direction is an MLP's write read? A token's logit, or what one firing compares."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.tracing.targets import Tokens, token_ids

if TYPE_CHECKING:
    from keyhole.models.run import Run


def toward(
    run: "Run", target: Tokens, against: Tokens | None = None, *, end: int | str = -1
) -> Float[Tensor, "d_model"]:
    """The direction in the residual stream at `end` that raises an answer's logit, against another's if one is given.

    A write's part along it is its part of the logit, before a cap on logits.
    """
    out, at = run.model.head_out(), run.position(end, "end")
    right, wrong = token_ids(run, target), token_ids(run, against)
    if not right:
        raise KeyholeError("give a token whose logit is asked for.")
    d = out.W_U[:, right].mean(1)
    if wrong:
        d = d - out.W_U[:, wrong].mean(1)
    return (d / run.final_scale[at]).to(torch.float64)
