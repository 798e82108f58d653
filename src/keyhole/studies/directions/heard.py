"""What do heads hear? Their signals in residual space: every firing of a head, in the coordinates of its channels.

A firing's signal on one side is the sum over its writers c of what each puts into its channels S_c. It is taken as it
is written, neither rotated nor divided by a norm, which is what an intervention at the writers removes:

    s = sum over c of P_{S_c} o_c = U a,    a_k = sum over c with k in S_c of u_k . o_c

U has orthonormal columns, so lengths and shares follow from `a` alone. What the same writers put into all channels is
kept too, since the control takes other channels (`keyhole.studies.directions.alike`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import Head, brief, first_few, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import OFFSETS, Component, SideName, Signal, Writer
from keyhole.tracing.firing import Firing
from keyhole.tracing.upstream import Writes


@dataclass(frozen=True)
class Caused:
    """The signals that cause one side of one firing."""

    run: int  # its index in the batch
    layer: int
    head: int
    side: SideName
    signals: tuple[Signal, ...]


@dataclass(frozen=True)
class Heard:
    """The signals of one head on one side, a row per firing."""

    __repr__ = brief

    layer: int
    head: int
    side: SideName
    prompt: Int[Tensor, "firing"]
    used: Float[Tensor, "firing channel"]  # the signal
    written: Float[Tensor, "firing channel"]  # what its writers put into every channel
    chosen: Bool[Tensor, "firing channel"]  # channels of any of its writers
    basis: Float[Tensor, "d_model channel"]  # u_k on the dest side, v_k on the src side
    authors: Mapping[Component, float]  # shares of the signals, on average over firings: they sum to one

    @property
    def place(self) -> Head:
        """Layer and head."""
        return self.layer, self.head

    def __len__(self) -> int:
        return len(self.prompt)


def of_firings(firings: Iterable[Firing], runs: Mapping[int, int]) -> Iterator[Caused]:
    """Both sides of explained firings; `runs` has the index of each run in the batch, by the run's `id`."""
    for firing in firings:
        for side in firing.sides:
            yield Caused(runs[id(firing.run)], firing.layer, firing.head, side.side, side.signals)


def of_circuit(circuit: Circuit, run: int) -> Iterator[Caused]:
    """The sides of a circuit's firings, out of its edges."""
    by_node: dict[tuple[int, SideName], list[Signal]] = defaultdict(list)
    for edge in circuit.edges:
        if edge.side in ("dest", "src"):
            by_node[edge.receiver, edge.side].append(circuit.signal(edge))
    for (node, side), signals in by_node.items():
        into = circuit.nodes[node]
        assert into.layer is not None and into.head is not None
        yield Caused(run, into.layer, into.head, side, tuple(signals))


def hear(writes: Writes, caused: Iterable[Caused], prompts: Sequence[int]) -> list[Heard]:
    """The signals of each head and side, in order, without offsets, which nobody writes; `prompts` numbers the runs."""
    groups: dict[tuple[SideName, int, int], list[Caused]] = defaultdict(list)
    for cause in caused:
        if any(signal.writer.kind not in OFFSETS for signal in cause.signals):
            groups[cause.side, cause.layer, cause.head].append(cause)
    heard = [_heard(writes, causes, prompts) for _, causes in sorted(groups.items())]
    return [signals for signals in heard if signals is not None]


def _heard(writes: Writes, caused: Sequence[Caused], prompts: Sequence[int]) -> Heard | None:
    """All firings of one head on one side, without those whose writers put nothing into their channels."""
    side, layer, head = caused[0].side, caused[0].layer, caused[0].head
    signals = [(i, s) for i, cause in enumerate(caused) for s in cause.signals if s.writer.kind not in OFFSETS]
    row = torch.tensor([i for i, _ in signals])
    om = writes.omega(layer)
    basis = (om.u(head) if side == "dest" else om.v(head)).double().cpu()
    vectors = writes.written([caused[i].run for i, _ in signals], [s.writer for _, s in signals]).double().cpu()
    coordinates = vectors @ basis
    mask = torch.zeros(coordinates.shape, dtype=torch.bool)
    for number, (_, signal) in enumerate(signals):
        mask[number, list(signal.channels)] = True
    shape = (len(caused), basis.shape[1])
    used = coordinates.new_zeros(shape).index_add_(0, row, coordinates * mask)
    written = coordinates.new_zeros(shape).index_add_(0, row, coordinates)
    chosen = torch.zeros(shape).index_add_(0, row, mask.float()) > 0
    energy = used.square().sum(1)
    kept = energy > 0
    if not bool(kept.any()):
        return None
    share = (coordinates * mask * used[row]).sum(1) / energy[row]
    authors = _authors([s.writer for _, s in signals], share, kept[row], int(kept.sum()))
    of = torch.tensor([prompts[cause.run] for cause in caused])
    return Heard(layer, head, side, of[kept], used[kept], written[kept], chosen[kept], basis, authors)


def _authors(
    writers: Sequence[Writer], share: Float[Tensor, "signal"], kept: Bool[Tensor, "signal"], firings: int
) -> dict[Component, float]:
    shares: dict[Component, float] = defaultdict(float)
    for writer, value, counts in zip(writers, share.tolist(), kept.tolist(), strict=True):
        if counts:
            shares[Component.of(writer)] += value / firings
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def joined(parts: Iterable[Heard]) -> list[Heard]:
    """The signals of several batches of prompts, each head and side once, in order."""
    groups: dict[tuple[SideName, int, int], list[Heard]] = defaultdict(list)
    for part in parts:
        groups[part.side, part.layer, part.head].append(part)
    return [_joined(group) for _, group in sorted(groups.items())]


def _joined(parts: Sequence[Heard]) -> Heard:
    total, authors = sum(map(len, parts)), defaultdict[Component, float](float)
    for part in parts:
        for author, share in part.authors.items():
            authors[author] += share * len(part) / total
    return replace(
        parts[0],
        prompt=torch.cat([part.prompt for part in parts]),
        used=torch.cat([part.used for part in parts]),
        written=torch.cat([part.written for part in parts]),
        chosen=torch.cat([part.chosen for part in parts]),
        authors=dict(sorted(authors.items(), key=lambda item: -item[1])),
    )


def author_name(author: Component) -> str:
    """A writer without its tokens.

    >>> author_name(Component("head", 3, 1)), author_name(Component("mlp", 2, None))
    ('head 3.1', 'MLP 2')
    """
    return "head " * (author.kind == "head") + str(author)


# Words for groups of heads, and for what was taken out of their signals.

SURE = 0.01  # the p-value up to which a likeness is significant
_HEADS = 6  # of a cluster, that are named


def draws_text(draws: int) -> str:
    """A warning if the control has too few draws for a significant p-value; else nothing.

    >>> draws_text(99), draws_text(19)
    ('', '; 19 draws of the control can show nothing at p 0.01: take 99 or more')
    """
    least = round(1 / SURE) - 1
    doubt = f"; {draws} draws of the control can show nothing at p {SURE:g}: take {least} or more"
    return "" if draws >= least else doubt


def taken_text(taken: int | None) -> str:
    """What was taken out of signals.

    >>> taken_text(None), taken_text(0), taken_text(3)
    ('as they are', 'without the mean', 'without the mean and 3 largest directions')
    """
    if taken is None:
        return "as they are"
    return "without the mean" if taken == 0 else f"without the mean and {taken} largest direction{'s' * (taken > 1)}"


def cluster_text(heads: tuple[Head, ...]) -> str:
    """Some heads of a cluster, and how many more.

    >>> cluster_text(((1, 0), (2, 3)))
    '2 heads in 2 layers: 1.0, 2.3'
    """
    layers = len({layer for layer, _ in heads})
    return f"{len(heads)} heads in {layers} layer{'s' * (layers > 1)}: {first_few([*map(head_name, heads)], _HEADS)}"
