"""What do heads receive in two circuits? Cosines of their signals, compared with those of pairs of other prompts."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.progress import Progress, silent
from keyhole.stats import Interval, interval
from keyhole.tasks.example import Example, place_names

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store


@dataclass(frozen=True)
class Member:
    """One circuit, and the roles of its tokens (None: its prompt has none)."""

    circuit: Circuit
    names: tuple[str, ...] | None = None
    prompt: int | None = None  # its number in a store

    @classmethod
    def of(cls, circuit: Circuit, example: Example | None = None, prompt: int | None = None) -> "Member":
        """A circuit with the example it was traced on, if there is one."""
        places = {} if example is None else example.places(circuit.tokens)
        return cls(circuit, place_names(places, len(circuit.tokens)) if places else None, prompt)


def member(store: "Store", prompt: int) -> Member:
    """One prompt of a store that has a circuit."""
    outcome = store[prompt]
    if outcome.circuit is None:
        raise KeyholeError(f"prompt {prompt} has no circuit; it is {outcome.status}.")
    return Member.of(outcome.circuit, outcome.example, prompt)


def draw(
    store: "Store", prompts: Sequence[int], n: int, *, seed: int = 0, but: Sequence[int | None] = ()
) -> list[Member]:
    """At most n of these prompts, drawn by the seed; those in `but` are left out."""
    pool = sorted(set(prompts) - set(but))
    chosen = random.Random(seed).sample(pool, min(n, len(pool)))
    by_prompt = {outcome.index: outcome for outcome in store.outcomes({"prompt": sorted(chosen)})}
    outcomes = [by_prompt[prompt] for prompt in chosen]
    return [
        Member.of(outcome.circuit, outcome.example, outcome.index)
        for outcome in outcomes
        if outcome.circuit is not None
    ]


# Do the same heads do the same in two circuits? The signals that a head receives are compared by their cosine.
#
# For each firing of a head (layer 1 and up) the signals of its dest edges are summed, and those of its src edges; each
# sum has unit length. Three choices:
#
# - Firings are matched by their place: the roles of dest and src, with distances. Without roles, all firings of a head
#   are summed, which shows less: a head that does one thing at two tokens may look as if it did two things.
# - The head's own bias (an offset) is one of its signals, as in the published comparison. It is the same in all prompts
#   and makes heads more alike, here and in the floor; `offsets=False` leaves it out.
# - Vectors are those that the head compares, after rotation. So with RoPE another distance gives another vector; the
#   floor has this effect too, since its prompts have various lengths.
#
# A floor is needed because signals differ between two prompts of one family, too. Its pairs are drawn within families.

Verdict = Literal["as within", "less alike", "different", "unclear", "no floor"]
QUANTILE = 0.05  # of pairs within a family: cosines below it are not noise
LEAST = 3  # pairs of other prompts in each family that a floor needs
SIDES: tuple[SideName, SideName] = ("dest", "src")
Vector = Float[np.ndarray, "d_model"]


@dataclass(frozen=True, order=True)
class Place:
    """A head and, where its prompt has roles, those of the two tokens of its firing."""

    layer: int
    head: int
    dest: str | None = None
    src: str | None = None

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}" + ("" if self.dest is None else f" {self.dest} <- {self.src}")


@dataclass(frozen=True, repr=False)
class Aggregated:
    """What the heads of one circuit receive on each side: their summed signals, of unit length, by place."""

    dest: Mapping[Place, Vector]
    src: Mapping[Place, Vector]

    def side(self, name: SideName) -> Mapping[Place, Vector]:
        """Of one side."""
        return self.dest if name == "dest" else self.src


@dataclass(frozen=True)
class HeadRow:
    """One head at one place, on one side, in two representatives and in pairs of other prompts."""

    place: Place
    side: SideName
    cosine: float  # between the representatives
    floor: float  # of pairs within a family, the lower of both families' 5 % quantiles; NaN: too few pairs
    within_a: Interval | None  # means over pairs of which no two share a prompt
    within_b: Interval | None
    between: Interval | None  # one prompt of each family
    pairs: tuple[int, int, int]  # how many: within a, within b, between
    verdict: Verdict


@dataclass(frozen=True)
class SignalComparison:
    """Two representatives, head by head."""

    rows: tuple[HeadRow, ...]
    only_a: tuple[Place, ...]  # explained in one alone
    only_b: tuple[Place, ...]
    matched: Literal["roles", "heads"]
    members: tuple[int, int]  # prompts behind the floor, of each family


def aggregated(member: Member, model: "Model | None" = None, *, roles: bool = True, offsets: bool = True) -> Aggregated:
    """What each head of a circuit receives, summed over the edges into it."""
    from keyhole.intervene.cuts import run_of
    from keyhole.store.store import signal_vectors

    circuit = replace(member.circuit, run=run_of(member.circuit, model))
    sums: dict[SideName, dict[Place, Vector]] = {"dest": {}, "src": {}}
    names = member.names if roles else None
    for number, vector in signal_vectors(circuit).items():
        edge = circuit.edges[number]
        into, source = circuit.nodes[edge.receiver], circuit.nodes[edge.sender]
        if source.kind == "offset" and not offsets:
            continue
        assert (edge.side == "dest" or edge.side == "src") and into.layer is not None and into.head is not None
        tokens = (None, None) if names is None else (names[into.dest], names[into.src])
        place, of_side = Place(into.layer, into.head, *tokens), sums[edge.side]
        of_side[place] = of_side[place] + vector if place in of_side else vector.astype(np.float64)
    return Aggregated(_unit(sums["dest"]), _unit(sums["src"]))


def compare_signals(
    pair: tuple[Member, Member],
    families: tuple[Sequence[Member], Sequence[Member]],
    model: "Model | None" = None,
    *,
    offsets: bool = True,
    progress: Progress | None = None,
) -> SignalComparison:
    """Are the signals of two representatives less alike than those of other pairs of prompts, head by head?"""
    members = [*pair, *families[0], *families[1]]
    roles = all(member.names is not None for member in members)
    tell, summed = progress or silent, []
    for done, member in enumerate(members):
        summed.append(aggregated(member, model, roles=roles, offsets=offsets))
        tell(done + 1, len(members))
    count = len(families[0])
    return compare_aggregated((summed[0], summed[1]), (summed[2 : 2 + count], summed[2 + count :]), roles=roles)


def compare_aggregated(
    pair: tuple[Aggregated, Aggregated], others: tuple[Sequence[Aggregated], Sequence[Aggregated]], *, roles: bool
) -> SignalComparison:
    """The same for signals that are summed already; `roles`: do their places have roles?"""
    a, b = pair
    rows = [
        head_row(place, side, (a, b), others)
        for side in SIDES
        for place in sorted(set(a.side(side)) & set(b.side(side)))
    ]
    places_a, places_b = ({*signals.dest, *signals.src} for signals in (a, b))
    return SignalComparison(
        tuple(rows),
        tuple(sorted(places_a - places_b)),
        tuple(sorted(places_b - places_a)),
        "roles" if roles else "heads",
        (len(others[0]), len(others[1])),
    )


def head_row(
    place: Place,
    side: SideName,
    pair: tuple[Aggregated, Aggregated],
    others: tuple[Sequence[Aggregated], Sequence[Aggregated]],
) -> HeadRow:
    """One place: the cosine of the representatives, the floor, and pairs of other prompts; judged."""
    cosine = float(pair[0].side(side)[place] @ pair[1].side(side)[place])
    vectors_a, vectors_b = (
        [signals.side(side)[place] for signals in family if place in signals.side(side)] for family in others
    )
    apart = [list(zip(vectors[::2], vectors[1::2], strict=False)) for vectors in (vectors_a, vectors_b)]
    across = list(zip(vectors_a, vectors_b, strict=False))
    within, between = (_spread(apart[0]), _spread(apart[1])), _spread(across)
    floor = float("nan")
    if min(map(len, apart)) >= LEAST:
        floor = min(_low(list(combinations(vectors, 2))) for vectors in (vectors_a, vectors_b))
    counts = (len(apart[0]), len(apart[1]), len(across))
    return HeadRow(place, side, cosine, floor, *within, between, counts, judge(cosine, floor, within, between))


def judge(
    cosine: float, floor: float, within: tuple[Interval | None, Interval | None], between: Interval | None
) -> Verdict:
    """Is a cosine between families lower than noise explains?

    `different`: the representatives are below the floor, and pairs between families are less alike than pairs within,
    with intervals that do not overlap. `less alike`: only the second holds. `unclear`: only the first holds, so the
    representatives may be atypical.

    >>> same = Interval(0.9, 0.8, 1.0), Interval(0.9, 0.7, 1.1)
    >>> judge(-0.4, 0.7, same, Interval(-0.2, -0.5, 0.1))
    'different'
    >>> judge(-0.4, 0.7, same, Interval(0.7, 0.5, 0.9))
    'unclear'
    >>> judge(0.8, 0.7, same, Interval(0.9, 0.8, 1.0))
    'as within'
    >>> judge(0.8, 0.7, same, Interval(0.4, 0.3, 0.5))
    'less alike'
    """
    if np.isnan(floor) or between is None or within[0] is None or within[1] is None:
        return "no floor"
    apart = between[2] < min(within[0][1], within[1][1])
    if cosine >= floor:
        return "less alike" if apart else "as within"
    return "different" if apart else "unclear"


def _unit(sums: Mapping[Place, Vector]) -> dict[Place, Vector]:
    """Each to unit length; sums that cancel exactly have no direction and are left out."""
    lengths = {place: float(np.linalg.norm(vector)) for place, vector in sums.items()}
    return {place: vector / lengths[place] for place, vector in sums.items() if place.layer >= 1 and lengths[place]}


def _cosines(pairs: Sequence[tuple[Vector, Vector]]) -> list[float]:
    return [float(left @ right) for left, right in pairs]


def _spread(pairs: Sequence[tuple[Vector, Vector]]) -> Interval | None:
    return interval(_cosines(pairs)) if len(pairs) > 1 else None


def _low(pairs: Sequence[tuple[Vector, Vector]]) -> float:
    return float(np.quantile(_cosines(pairs), QUANTILE))
