"""What can be chosen about faithfulness curves? One record, which the library, the command line and pages read."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from keyhole.errors import KeyholeError, require_choice

Baseline = Literal["mean", "counterfactual", "resting", "zero"]
Tokens = Literal["dropped", "kept"]
Ranking = Literal["signed", "absolute"]
Per = Literal["task", "prompt"]
EdgeMethod = Literal[
    *("accpp", "heads", "svt", "share", "sufficient"),
    *("gradients", "integrated", "eap-ig-inputs", "gim", "random"),
]
METHODS: tuple[EdgeMethod, ...] = get_args(EdgeMethod)
# Slopes along a way from nothing say little under a norm: the answer does not depend on the size of a stream.
NEED_BASELINE: frozenset[str] = frozenset({"integrated", "share", "sufficient", "eap-ig-inputs"})


def _help(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class CurveSettings:
    """Which methods rank which edges, on which prompts, and what stands in for edges that are cut.

    >>> CurveSettings(baseline="counterfactual", methods=("share", "random")).tokens
    'dropped'
    """

    methods: tuple[EdgeMethod, ...] = _help("Methods to compare; none: all that the baseline allows.", ())
    prompts: int = _help("Prompts that methods are shown, and as many others to cut edges in.", 32)
    baseline: Baseline = _help(
        "What stands in for a cut edge: the mean over prompts of the same template and length, the prompt's own "
        "counterfactual (patching, as MIB does), the resting state, or zero.",
        "mean",
    )
    tokens: Tokens = _help(
        "dropped: an edge joins two components at all tokens (as in MIB). kept: it joins them at one token.", "dropped"
    )
    ranking: Ranking = _help("Order of edges: by signed score, or by its absolute value.", "signed")
    per: Per = _help(
        "task: scores averaged over the shown prompts, edges cut in other prompts. prompt: each prompt's own scores, "
        "cut in itself, which is a fit.",
        "task",
    )
    draws: int = _help("Draws of random edges.", 3)
    seed: int = _help("Seed of random orders.", 0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(dict.fromkeys(self.methods)))
        for method in self.methods:
            require_choice("method", method, EdgeMethod)
        for name, choices in (("baseline", Baseline), ("tokens", Tokens), ("ranking", Ranking), ("per", Per)):
            require_choice(name, getattr(self, name), choices)
        if self.draws < 1 or self.prompts < 1:
            raise KeyholeError(
                f"{self.prompts} prompts and {self.draws} draws of random edges are too few: at least 1."
            )
        refused = [method for method in self.methods if self.baseline == "zero" and method in NEED_BASELINE]
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
