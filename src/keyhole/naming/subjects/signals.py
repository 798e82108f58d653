"""Which signals has a circuit? One subject for every edge into a head, with what its writer put there."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.text import node_label
from keyhole.circuits.writer import Signal, Writer
from keyhole.intervene.cuts import fresh_run
from keyhole.models.heads import Head, head_name
from keyhole.models.numbers.precision import exact_matmul
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.pairs import paired
from keyhole.qk.omega import Basis, omega
from keyhole.tracing.writes.written import read_of

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.tracing.firings.firing import Firing


def signal_subjects(circuit: Circuit, model: "Model | None" = None) -> list[Subject]:
    """The signals of a circuit, in the order of its edges; one from a file needs the `model` that made it."""
    run = fresh_run(circuit, model)
    found = []
    with exact_matmul():
        for number, edge in signal_edges(circuit):
            into = circuit.nodes[edge.target]
            assert into.layer is not None and into.head is not None
            one = _subject(run, (into.layer, into.head), circuit.signal(edge), _label(circuit, edge.target))
            found.append(replace(one, id=f"{one.id} #{number}", about={**one.about, "edge": str(number)}))
    return found


def firing_subject(firing: "Firing", signal: Signal) -> Subject:
    """One signal of a firing that was explained."""
    head = (firing.layer, firing.head)
    into = node_label(Writer("head", *head, firing.dest, firing.src), firing.run.tokens)
    with exact_matmul():
        return _subject(firing.run, head, signal, into)


def _subject(run: "Run", head: Head, signal: Signal, into: str) -> Subject:
    channels, writer = tuple(sorted(signal.channels)), signal.writer
    put = coordinates(run, head, replace(signal, channels=channels))
    directions = paired(run.model, head, signal.side, channels, coordinates=put, basis=signal.basis)
    about = {"side": signal.side, "channels": told_channels(channels), "coordinates": told_coordinates(put)}
    about |= {"writer": node_label(writer, run.tokens), "into": into} | told_basis(signal.basis)
    return Subject(term_text(head, signal.side, channels, writer), "signal", head, *directions, about=about)


def signal_edges(circuit: Circuit) -> Iterator[tuple[int, Edge]]:
    """The edges of a circuit that are signals, with their numbers."""
    return ((number, edge) for number, edge in enumerate(circuit.edges) if edge.side in ("dest", "src"))


def coordinates(run: "Run", head: Head, signal: Signal) -> Float[Tensor, "channels"]:
    """What a writer put into the channels of a signal: a_k of the rotated query, or b_k of the rotated key."""
    om, ks = omega(run.model, head[0], signal.basis), list(signal.channels)
    read = read_of(run, head, signal, [signal.writer.dest])[0]
    if signal.side == "dest":
        return run.layer(head[0]).rule.scaling * (read @ om.G_d[head[1]])[ks]
    return (om.G_s[head[1]] @ read)[ks]


def term_text(head: Head, side: str, channels: tuple[int, ...], writer: Writer) -> str:
    """A signal without its tokens, such as 9.6 dest 3 <- 7.9."""
    who = f"{writer.layer}.{writer.head}" if writer.kind == "head" else f"{writer.kind} {writer.layer}"
    return f"{head_name(head)} {side} {told_channels(channels)} <- {who}"


def told_channels(channels: tuple[int, ...]) -> str:
    """In the order of their numbers."""
    return ",".join(map(str, sorted(channels)))


def told_basis(basis: Basis) -> dict[str, str]:
    """What is said of the basis of a signal's channels: nothing of the usual one."""
    return {} if basis == "linear" else {"basis": basis}


def told_coordinates(put: Float[Tensor, "channels"]) -> str:
    """The direction that a signal has in its channels, in the order of their numbers: of unit length.

    >>> import torch
    >>> told_coordinates(torch.tensor([3.0, -4.0]))
    '+0.6000,-0.8000'
    """
    return ",".join(f"{value:+.4f}" for value in (put.double() / put.double().norm()).tolist())


def _label(circuit: Circuit, node: int) -> str:
    return node_label(circuit.nodes[node], circuit.tokens)
