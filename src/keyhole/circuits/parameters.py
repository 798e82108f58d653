"""What did tracing choose? A frozen record per method, kept with the circuit and read back strictly."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_type_hints

from keyhole.strict import fits, frozen, quoted, require, shortened

Place = tuple[int, int, int, int]  # layer, head, dest, src


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What every method is told, and how likely the model finds the answer. Old files do not know the latter."""

    method: ClassVar[str]
    basis: Literal["linear", "homogeneous"]
    target_ids: tuple[int, ...] = ()
    against_ids: tuple[int, ...] = ()
    end: int  # the position that predicts the answer
    seeds: Literal["prob", "linear", "probe", "given"]
    probe_layer: int | None = None
    seed_tau: float = 0.8  # the share of the answer's log-likelihood that seeds "prob" carry
    top_p: float | None = None  # how the targets were chosen, where they were not named
    top_k: int | None = None
    target_text: tuple[str, ...] = ()
    target_probability: tuple[float, ...] = ()
    against_text: tuple[str, ...] = ()
    against_probability: tuple[float, ...] = ()

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {"method": self.method, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Accpp(Parameters):
    """Signals found by removal."""

    method: ClassVar[str] = "accpp"
    basis: Literal["linear"] = "linear"
    tau: float | Literal["dynamic", "function"] = "dynamic"
    keys: Literal["all", "source"] = "all"
    sinks: Literal["keep", "mark", "collapse"] = "keep"
    through: Literal["heads", "mlps"] = "heads"  # what follows is of "mlps"
    cover: float | None = None
    eps: float | None = None
    values: bool | None = None
    constants: Literal["baseline", "causes"] | None = None

    def record(self) -> dict[str, Any]:
        """As plain data; of circuits of heads, as it was before others could be traced."""
        further = ("through", "cover", "eps", "values", "constants") if self.through == "heads" else ()
        return {name: value for name, value in super().record().items() if name not in further}


@dataclass(frozen=True, kw_only=True)
class Sufficient(Accpp):
    """The smallest edges that keep enough of the answer, with signals that say why their heads look there."""

    method: ClassVar[str] = "sufficient"
    level: float  # of the answer's gap to the baseline, that is kept at least
    both_signs: bool  # with edges that hold the answer back
    baseline: str  # in whose place everything else stands
    signals: int  # at most so many for each side of a firing
    found: int  # the circuit's first edges, which suffice; those after them are signals that say why heads look there


@dataclass(frozen=True, kw_only=True)
class Svt(Parameters):
    """Singular vector tracing, heads alone."""

    method: ClassVar[str] = "svt"
    basis: Literal["homogeneous"] = "homogeneous"
    rope: Literal["rotated"] | None = None
    start: tuple[Place, ...] | None = None
    channels: Literal["singular", "all"] = "singular"
    share: float = 0.7
    threshold: float = 0.5


METHODS: dict[str, type[Parameters]] = {kind.method: kind for kind in (Accpp, Sufficient, Svt)}


def parameters_from(record: Mapping[str, Any]) -> Parameters:
    """Parameters out of a file; what is missing, unknown or of another kind is refused by its name."""
    told = dict(record)
    method = told.pop("method", None)
    require(method in list(METHODS), f"its method is {quoted(method)}, and this version knows {', '.join(METHODS)}.")
    kind = METHODS[method]
    hints = get_type_hints(kind)
    known = {one.name: one for one in fields(kind)}
    missing = {name for name, one in known.items() if one.default is MISSING} - set(told)
    odd = missing | (set(told) - set(known))
    require(not odd, f"its parameters lack or do not know {shortened(', '.join(sorted(odd)))}.")
    values = {name: frozen(value) for name, value in told.items()}
    for name, value in values.items():
        require(fits(value, hints[name]), f"its parameter {name} is {quoted(told[name])}, which {method} cannot have.")
    return kind(**values)
