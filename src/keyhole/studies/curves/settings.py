"""What can be chosen about faithfulness curves? One record, which the library, the command line and pages read."""

from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from keyhole.errors import KeyholeError, require_choice
from keyhole.settings.fields import option, require_choices

Baseline = Literal["mean", "counterfactual", "resting", "zero"]
Tokens = Literal["dropped", "kept"]
Ranking = Literal["signed", "absolute"]
Per = Literal["task", "prompt"]
EdgeMethod = Literal[
    "accpp", "heads", "svt", "share", "sufficient", "gradients", "integrated", "eap-ig-inputs", "gim", "random"
]
METHODS: tuple[EdgeMethod, ...] = get_args(EdgeMethod)
# Slopes along a way from nothing say little under a norm: the answer does not depend on the size of a stream.
NEED_BASELINE: frozenset[str] = frozenset({"integrated", "share", "sufficient", "eap-ig-inputs"})


@dataclass(frozen=True)
class CurveSettings:
    """Which methods rank which edges, on which prompts, and what stands in for edges that are cut.

    >>> CurveSettings(baseline="counterfactual", methods=("share", "random")).tokens
    'dropped'
    """

    prompts: int = option(32, "How many prompts the methods score edges in; edges are cut in as many others.", least=1)
    baseline: Baseline = option(
        "mean",
        "What stands in for a cut edge: the mean over prompts of its template and length, the prompt's own "
        "counterfactual (patching, as MIB does), the resting state, or zero (invalid under a norm).",
    )
    tokens: Tokens = option(
        "dropped", "What an edge is: between two components at one token (kept) or at all tokens (dropped, as in MIB)."
    )
    ranking: Ranking = option(
        "signed", "How edges are ordered: by their signed scores or by the absolute values of these."
    )
    per: Per = option(
        "task",
        "Where edges are scored: over all prompts, to be cut in others (task), or in each prompt that they "
        "are cut in (prompt), which is a fit.",
    )
    methods: tuple[EdgeMethod, ...] | None = option(
        None, f"Some of {', '.join(METHODS)}, separated by commas. Default: all that the baseline allows."
    )
    draws: int = option(3, "How many draws of random edges, or of random groups with --split.", least=1)
    seed: int = option(0, "Seed of everything that is drawn at random.")

    def __post_init__(self) -> None:
        named = None if self.methods is None else tuple(dict.fromkeys(self.methods))
        object.__setattr__(self, "methods", named)  # as a tuple, whatever was given
        if named == ():
            raise KeyholeError(f"give at least one method, of {', '.join(METHODS)}.")
        for method in named or ():
            require_choice("method", method, EdgeMethod)
        require_choices(self)
        refused = [method for method in named or () if self.baseline == "zero" and method in NEED_BASELINE]
        if refused:
            raise KeyholeError(
                f"{refused[0]} goes along the way from the baseline, and zero is no baseline under a norm, where the "
                "answer does not depend on the size of a stream: take the baseline mean, counterfactual or resting."
            )

    @property
    def compared(self) -> tuple[EdgeMethod, ...]:
        """The methods, or all that the baseline allows."""
        zero = self.baseline == "zero"
        return self.methods or tuple(method for method in METHODS if not (zero and method in NEED_BASELINE))


class CurveOptions(TypedDict, total=False):
    """The fields of `CurveSettings`, for functions that take them as keywords."""

    prompts: int
    baseline: Baseline
    tokens: Tokens
    ranking: Ranking
    per: Per
    methods: tuple[EdgeMethod, ...] | None
    draws: int
    seed: int
