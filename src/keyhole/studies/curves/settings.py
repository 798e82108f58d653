"""What can be chosen about faithfulness curves? One record, which the library, the command line and pages read."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from keyhole.errors import KeyholeError, require_choice

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

    methods: tuple[EdgeMethod, ...] | None = field(
        default=None, metadata={"help": "Methods to compare. Default: all that the baseline allows."}
    )
    prompts: int = field(
        default=32, metadata={"help": "Prompts that methods are shown, and as many others to cut edges in."}
    )
    baseline: Baseline = field(
        default="mean",
        metadata={
            "help": "What stands in for a cut edge: the mean over prompts of the same template and length, the "
            "prompt's own counterfactual (patching, as MIB does), the resting state, or zero (invalid under a norm)."
        },
    )
    tokens: Tokens = field(
        default="dropped",
        metadata={"help": "dropped: an edge joins two components at all tokens, as in MIB; kept: at one token."},
    )
    ranking: Ranking = field(
        default="signed", metadata={"help": "Order of edges: by signed scores or by their absolute values."}
    )
    per: Per = field(
        default="task",
        metadata={
            "help": "task: scores averaged over the shown prompts, edges cut in other prompts; prompt: each prompt's "
            "own scores, cut in itself, which is a fit."
        },
    )
    draws: int = field(default=3, metadata={"help": "Draws of random edges."})
    seed: int = field(default=0, metadata={"help": "Seed of random orders."})

    def __post_init__(self) -> None:
        named = None if self.methods is None else tuple(dict.fromkeys(self.methods))
        object.__setattr__(self, "methods", named)  # as a tuple, whatever was given
        if named == ():
            raise KeyholeError(f"give at least one method, of {', '.join(METHODS)}.")
        for method in named or ():
            require_choice("method", method, EdgeMethod)
        for name, choices in (("baseline", Baseline), ("tokens", Tokens), ("ranking", Ranking), ("per", Per)):
            require_choice(name, getattr(self, name), choices)
        if self.draws < 1 or self.prompts < 1:
            raise KeyholeError(
                f"{self.prompts} prompts and {self.draws} draws of random edges are too few: at least 1."
            )
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
