"""Which subjects do circuits, heads, stores and features have?

A circuit has one subject for every edge into a head: the direction that its writer wrote there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.records import Component, SideName, Signal, Writer
from keyhole.circuits.text import node_label
from keyhole.errors import KeyholeError
from keyhole.features.contrast.finding import Feature
from keyhole.features.contrast.sums import Frame
from keyhole.features.discovery.one_head import HeadFeatures
from keyhole.intervene.cuts import fresh_run
from keyhole.models.numbers import exact_matmul
from keyhole.naming.subjects.subject import (
    About,
    Subject,
    SubjectKind,
    opposite,
    paired,
    require_head,
    rotates,
    unit_coordinates,
)
from keyhole.progress import Progress, silent
from keyhole.qk.omega import Basis, omega
from keyhole.store.model import model_of
from keyhole.store.store import Store, Where
from keyhole.tracing.writers import read_of

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing


def signal_subjects(circuit: Circuit, model: "Model | None" = None) -> list[Subject]:
    """The signals of a circuit, in the order of its edges.

    Args:
        circuit: The circuit.
        model: The model that made it, if it was read from a file.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> subjects = signal_subjects(run.trace(target="Mary"))
    >>> subjects[0].kind, subjects[0].about["edge"]
    ('signal', 2)
    """
    run = fresh_run(circuit, model)
    subjects = []
    with exact_matmul():
        for number, edge in signal_edges(circuit):
            into = circuit.nodes[edge.receiver]
            assert into.layer is not None and into.head is not None
            subject = _signal_subject(
                run, (into.layer, into.head), circuit.signal(edge), node_label(into, circuit.tokens)
            )
            subjects.append(replace(subject, id=f"{subject.id} #{number}", about={**subject.about, "edge": number}))
    return subjects


def firing_subject(firing: "Firing", signal: Signal) -> Subject:
    """One signal of a firing that was explained."""
    head = (firing.layer, firing.head)
    into = node_label(Writer("head", *head, firing.dest, firing.src), firing.run.tokens)
    with exact_matmul():
        return _signal_subject(firing.run, head, signal, into)


def _signal_subject(run: "Run", head: Head, signal: Signal, into: str) -> Subject:
    channels, writer = tuple(sorted(signal.channels)), signal.writer
    values = coordinates(run, head, replace(signal, channels=channels))
    directions = paired(run.model, head, signal.side, channels, coordinates=values, basis=signal.basis)
    about = signal_about(signal.side, channels, values, signal.basis)
    about |= About(writer=node_label(writer, run.tokens), into=into)
    return Subject(term_text(head, signal.side, channels, writer), "signal", head, *directions, about=about)


def signal_edges(circuit: Circuit) -> Iterator[tuple[int, Edge]]:
    """The edges of a circuit that are signals, with their numbers."""
    return ((number, edge) for number, edge in enumerate(circuit.edges) if edge.side in ("dest", "src"))


def coordinates(run: "Run", head: Head, signal: Signal) -> Float[Tensor, "channels"]:
    """What a writer wrote into the channels of a signal: a_k of the rotated query, or b_k of the rotated key."""
    om, channels = omega(run.model, head[0], signal.basis), list(signal.channels)
    read = read_of(run, head, signal, [signal.writer.dest])[0]
    if signal.side == "dest":
        return run.attention_run(head[0]).rule.scaling * (read @ om.G_d[head[1]])[channels]
    return (om.G_s[head[1]] @ read)[channels]


def term_text(head: Head, side: str, channels: tuple[int, ...], writer: Component | Writer) -> str:
    """A signal without its tokens, such as 9.6 dest 3 <- 7.9."""
    return f"{head_name(head)} {side} {channels_text(channels)} <- {component_text(writer)}"


def component_text(writer: Component | Writer) -> str:
    """A head by its name, another component by its kind and layer."""
    return f"{writer.layer}.{writer.head}" if writer.kind == "head" else f"{writer.kind} {writer.layer}"


def channels_text(channels: tuple[int, ...]) -> str:
    """Channels in increasing order, as ids have them."""
    return ",".join(map(str, sorted(channels)))


def signal_about(
    side: SideName, channels: tuple[int, ...], coordinates: Float[Tensor, "channels"], basis: Basis
) -> About:
    """Side, channels and direction of a signal; the basis only where it is not the linear one."""
    about = About(side=side, channels=channels, coordinates=unit_coordinates(coordinates))
    return about if basis == "linear" else {**about, "basis": basis}


# Which channels does a head have? Each is two subjects: u_k with v_k, and their opposites.


def channel_subjects(model: "Model", head: Head, channels: Sequence[int] | None = None) -> list[Subject]:
    """Both signs of channels of a head: "3.1:4" and "3.1:4-".

    Args:
        model: The model.
        head: (layer, head).
        channels: Which channels. Default: all that the head has.

    >>> import keyhole
    >>> [subject.id for subject in channel_subjects(keyhole.load(), (3, 1), [4])]
    ['3.1:4', '3.1:4-']
    """
    require_head(model, head)
    rank = int(omega(model, head[0]).rank[head[1]])
    subjects = []
    for channel in range(rank) if channels is None else channels:
        directions = paired(model, head, "src", [channel], coordinates=torch.ones(1))
        name = f"{head_name(head)}:{channel}"
        about = About(channels=(channel,), coordinates=(1.0,), sign="both positive")
        positive = Subject(name, "channel", head, *directions, about=about)
        negative = opposite(positive)
        subjects += [positive, Subject(f"{name}-", "channel", head, negative.query, negative.key, about=negative.about)]
    return subjects


# Which features of contrasts, and which discovered ones, can be looked for in any text? Fixed directions of q and k.
#
# A feature of queries and keys from which the RoPE rotation was undone is not a fixed direction: it is refused, unless
# the model does not rotate.


def contrast_subjects(model: "Model", features: Sequence[Feature], frame: Frame) -> list[Subject]:
    """Every dimension of some features, with both signs.

    Args:
        model: The model.
        features: Features of queries and keys, as a contrast's study finds them.
        frame: The frame in which the study found them: "post_rope", or any where the model has no rotary positions.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, find_features, order_contrast
    >>> model = keyhole.load()
    >>> features = find_features(collect(model, order_contrast(model, 20, n_boxes=3)))
    >>> len(contrast_subjects(model, [features.of((3, 6), 1)], features.frame))
    2
    """
    subjects: list[Subject] = []
    for feature in features:
        require_fixed(model, feature.head, frame, f"the feature {feature.name!r}")
        for k in range(feature.rank):
            name = f"{head_name(feature.head)} {feature.name} {k}"
            about = About(contrast=feature.name, dimension=k)
            query, key = (feature.U[:, k], 0.0), (feature.V[:, k], 0.0)
            subjects += _both("contrast", name, feature.head, query=query, key=key, about=about)
    return subjects


def discovered_subjects(model: "Model", features: HeadFeatures) -> list[Subject]:
    """Every discovered feature of a head, with both signs; the key's sign is turned where query and key repel.

    Args:
        model: The model.
        features: Features of one head, as `keyhole.features.discovery` finds them.

    >>> import keyhole
    >>> from keyhole.features.discovery import head_features
    >>> model = keyhole.load()
    >>> features = head_features(model, [example.text for example in keyhole.tasks.ioi(60)], (3, 6))
    >>> len(discovered_subjects(model, features)) % 2
    0
    """
    head = features.data.layer, features.data.head
    require_fixed(model, head, features.data.view.frame, "a discovered feature")
    subjects: list[Subject] = []
    for number, feature in enumerate(features.discovery.features):
        sign = -1.0 if feature.coupling < 0 else 1.0
        key = sign * feature.key.direction, sign * feature.key.offset
        about = About(feature=number, share=feature.share)
        name = f"{head_name(head)} discovered {number}"
        query = feature.query.direction, feature.query.offset
        subjects += _both("discovered", name, head, query=query, key=key, about=about)
    return subjects


Direction = tuple[Tensor, float]  # and its offset


def _both(kind: SubjectKind, name: str, head: Head, *, query: Direction, key: Direction, about: About) -> list[Subject]:
    """A subject and its opposite."""
    positive = Subject(
        name, kind, head, query[0].float(), key[0].float(), query[1], key[1], {**about, "sign": "both positive"}
    )
    return [positive, opposite(positive)]


def require_fixed(model: "Model", head: Head, frame: Frame, feature: str) -> None:
    """Refuse a frame in which a feature is not a fixed direction of queries and keys."""
    require_head(model, head)
    if frame != "post_rope" and rotates(model, head[0]):
        raise KeyholeError(
            f"{feature} of head {head_name(head)} was found in the frame {frame!r}, where its direction depends on the "
            "position: find it again with the frame 'post_rope'."
        )


# Which signals recur in a store? One subject for each, made of all the prompts that have it.
#
# Two signals are the same if the same component writes into the same channels of the same head, on the same side,
# whatever the tokens. Their coordinates are summed over prompts, so that the part they have in common gets the name.


@dataclass(frozen=True)
class _Term:
    head: Head
    side: SideName
    channels: tuple[int, ...]  # in increasing order
    writer: Component  # biases count as one writer, whichever head they belong to
    basis: Basis

    @property
    def key(self) -> tuple[Any, ...]:
        layer, head, *_ = self.writer.key
        return self.head, self.side, self.channels, self.writer.kind, layer, head, self.basis

    def __str__(self) -> str:
        return term_text(self.head, self.side, self.channels, self.writer)


def store_subjects(
    store: Store,
    model: "Model | None" = None,
    *,
    most: int | None = 200,
    each: int = 50,
    where: Where = None,
    progress: Progress = silent,
) -> list[Subject]:
    """The signals of a store, those that most prompts have first. Their prompts are run again.

    Args:
        store: The store.
        model: The model that made the store. Default: it is loaded by its name.
        most: How many signals, at most. None: all.
        each: Over how many prompts a signal's coordinates are summed, at most.
        where: A condition on the store's table `prompts`. Default: all prompts.
        progress: Called with the number of prompts that were run again, and their total.

    >>> import keyhole, tempfile
    >>> model = keyhole.load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", model, n=2, out=f"{folder}/ioi.store")
    ...     store_subjects(store, model, most=1)[0].about["prompts"]
    2
    """
    loaded = model_of(store, model)
    counts: Counter[_Term] = Counter()
    having: dict[_Term, list[int]] = {}
    for prompt, circuit in store.circuits(where):
        for term in sorted({_term(circuit, edge) for _, edge in signal_edges(circuit)}, key=attrgetter("key")):
            counts[term] += 1
            having.setdefault(term, []).append(prompt)
    if not counts:
        raise KeyholeError(f"{store.path} has no signals to name: none of its circuits has an edge into a head.")
    chosen = sorted(counts, key=lambda term: (-counts[term], term.key))[:most]
    wanted: dict[int, set[_Term]] = {}
    for term in chosen:
        for prompt in sorted(having[term], key=_shuffled)[:each]:  # neighbouring prompts are alike
            wanted.setdefault(prompt, set()).add(term)
    sums = _sums(store, loaded, wanted, progress)
    return [_subject(loaded, term, sums[term], counts[term]) for term in chosen]


def _shuffled(prompt: int) -> tuple[int, int]:
    """A sort key that orders prompts independently of the store, and always in the same way."""
    return crc32(str(prompt).encode()), prompt


def _sums(store: Store, model: "Model", wanted: dict[int, set[_Term]], progress: Progress) -> dict[_Term, Tensor]:
    sums: dict[_Term, Tensor] = {}
    with exact_matmul():
        chosen = store.circuits({"prompt": sorted(wanted)})  # each part of the store is read once
        for done, (prompt, circuit) in enumerate(chosen, start=1):
            run = fresh_run(circuit, model)
            for _, edge in signal_edges(circuit):
                term = _term(circuit, edge)
                if term in wanted[prompt]:
                    signal = replace(circuit.signal(edge), channels=term.channels)
                    values = coordinates(run, term.head, signal).double()
                    sums[term] = sums[term] + values if term in sums else values
            progress(done, len(wanted))
    return sums


def _subject(model: "Model", term: _Term, total: Tensor, prompts: int) -> Subject:
    directions = paired(model, term.head, term.side, term.channels, coordinates=total, basis=term.basis)
    about = signal_about(term.side, term.channels, total, term.basis)
    about |= About(writer=component_text(term.writer), prompts=prompts)
    return Subject(str(term), "signal", term.head, *directions, about=about)


def _term(circuit: Circuit, edge: Edge) -> _Term:
    into, who = circuit.nodes[edge.receiver], circuit.nodes[edge.sender].writer
    assert into.layer is not None and into.head is not None and edge.side in ("dest", "src")
    writer = Component(who.kind, who.layer, who.head if who.kind == "head" else None)
    channels, basis = tuple(sorted(edge.channels)), circuit.parameters.basis
    return _Term((into.layer, into.head), edge.side, channels, writer, basis)
