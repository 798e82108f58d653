"""What can be chosen about a trace? Every choice, checked, and as a circuit keeps it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from keyhole.circuits.parameters import Accpp
from keyhole.errors import KeyholeError, require_choice
from keyhole.qk.firings import check_tau
from keyhole.tracing.answers.likelihood import Probability
from keyhole.tracing.answers.linear import Probe
from keyhole.tracing.answers.targets import Likeliest
from keyhole.tracing.firings.candidates import Keys
from keyhole.tracing.firings.firing import Tau
from keyhole.tracing.mlps.flow import Through

Seeds = Literal["prob", "linear"] | Probability | Probe
Sinks = Literal["keep", "mark", "collapse"]


@dataclass(frozen=True)
class Settings:
    """Every choice a trace makes."""

    target_ids: tuple[int, ...] = ()
    against_ids: tuple[int, ...] = ()
    end: int = -1
    likeliest: Likeliest | None = None  # how the targets were chosen, where they were not named
    seeds: Seeds = "prob"
    tau: Tau = "dynamic"
    keys: Keys = "all"
    sinks: Sinks = "keep"
    through: Through | None = None  # None: circuits of heads, which end at MLPs

    def __post_init__(self) -> None:
        if not isinstance(self.seeds, Probability | Probe) and self.seeds not in ("prob", "linear"):
            raise KeyholeError(f"there are no seeds {self.seeds!r}: choose 'prob', 'linear', a Probability or a Probe.")
        if self.against_ids and self.seeds != "linear":
            raise KeyholeError(
                '`against` belongs to seeds "linear", which it implies: "prob" traces the target\'s own probability.'
            )
        if self.tau != "dynamic" and not callable(self.tau):
            check_tau(self.tau)
        require_choice("keys", self.keys, Keys)
        require_choice("sinks", self.sinks, Sinks)

    @property
    def seed_tau(self) -> float:
        """The share of the answer's log-likelihood that seeds "prob" carry."""
        return (self.seeds if isinstance(self.seeds, Probability) else Probability()).tau

    def shared(self) -> dict[str, Any]:
        """What every method keeps with its circuits."""
        kinds = {Probability: "prob", Probe: "probe"}
        return {
            "target_ids": self.target_ids,
            "against_ids": self.against_ids,
            "end": self.end,
            "seeds": kinds.get(type(self.seeds), self.seeds),
            "probe_layer": self.seeds.layer if isinstance(self.seeds, Probe) else None,
            "seed_tau": self.seed_tau,
            "top_p": self.likeliest and self.likeliest.p,
            "top_k": self.likeliest and self.likeliest.k,
        }

    def parameters(self) -> Accpp:
        """As it is kept."""
        tau: Any = "function" if callable(self.tau) else self.tau
        further: dict[str, Any] = {} if self.through is None else {"through": "mlps", **asdict(self.through)}
        return Accpp(**self.shared(), tau=tau, keys=self.keys, sinks=self.sinks, **further)
