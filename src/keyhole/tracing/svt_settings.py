"""What can be chosen about singular vector tracing? One record, for library, command line and stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, SupportsIndex

from keyhole.circuits.parameters import Place
from keyhole.errors import KeyholeError, require_choice
from keyhole.models.heads import Head
from keyhole.qk.channels import check_head

if TYPE_CHECKING:
    from keyhole.models.run import Run

ChannelChoice = Literal["singular", "all"]
Start = Head | tuple[int, int, int | str, int | str]  # layer and head, perhaps with dest and src


@dataclass(frozen=True)
class SvtSettings:
    """How `trace_svt` traces.

    A start is a firing (layer, head, dest, src), or a head (layer, head): its firing from the token that predicts the
    answer on the source it attends to most, the first token aside. In a bulk run dest and src may be roles of the task.

    >>> SvtSettings(threshold=0.4, start=[(9, 6), (9, 9, -1, "Mary")]).start
    ((9, 6), (9, 9, -1, 'Mary'))
    """

    threshold: float = 0.5  # the attention weight from which a head fires
    share: float = 0.7  # of all contributions to a firing through one token: the largest that exceed it are followed
    channels: ChannelChoice = "singular"  # those that make up a firing's score, or all (the paper's baseline)
    start: Sequence[Start] | None = None  # where to begin; None: at the heads that push towards the answer

    def __post_init__(self) -> None:
        require_choice("channels", self.channels, ChannelChoice)
        if not 0 < self.share < 1:
            raise KeyholeError(f"share is {self.share}, but a share of all contributions lies above 0 and below 1.")
        if not 0 < self.threshold <= 1:
            raise KeyholeError(
                f"threshold is {self.threshold}, but the attention weight of a firing lies above 0 and up to 1."
            )
        if self.start is not None:
            object.__setattr__(self, "start", _starts(self.start))

    def require_no_seeds(self, seeds: object) -> None:
        """Refuse seeds where a start is given: the circuit begins there."""
        if self.start is not None and seeds is not None:
            raise KeyholeError(
                "a circuit begins with given firings (start) or with seeds of the answer: leave one of them out."
            )

    def places(self, run: "Run", end: int) -> tuple[Place, ...]:
        """The firings that tracing begins with, in a run whose answer is predicted at `end`; none without `start`."""
        return tuple(_place(run, each, end) for each in self.start or ())


def _starts(given: Sequence[Start]) -> tuple[Start, ...]:
    """The starts as tuples, refused unless each has the form of a head or of a firing."""
    if len(given) == 0:
        raise KeyholeError("start is empty: name a head or a firing to begin with, or leave it out.")
    for each in given:
        fits = isinstance(each, Sequence) and not isinstance(each, str) and len(each) in (2, 4)
        if not (fits and all(isinstance(part, SupportsIndex | str) for part in each)):
            raise KeyholeError(
                f"start is a list of heads such as (9, 6) or firings such as (9, 6, -1, 'Mary'), and {each!r} is "
                "neither."
            )
    return tuple(tuple(each) for each in given)  # type: ignore[misc]


def _place(run: "Run", start: Start, end: int) -> Place:
    """A start in a run; of a head alone, what it attends to most from `end`."""
    layer, head = check_head(run, start[:2])
    record = run.layer(layer)
    if len(start) == 2:
        row = record.weights([head], [end])[0, 0].clone()
        row[0] = -1.0  # attention rests on the first token when there is nothing to move
        src = int(row.argmax())
        if src == 0 or src > end:
            raise KeyholeError(f"head {layer}.{head} sees nothing but the first token from token {end}: give its dest.")
        return layer, head, end, src
    dest, src = run.position(start[2], "dest"), run.position(start[3], "src")
    first = int(record.first[dest])
    if not first <= src <= dest:
        raise KeyholeError(f"src {src} is not visible from dest {dest}, which sees tokens {first} to {dest}.")
    return layer, head, dest, src
