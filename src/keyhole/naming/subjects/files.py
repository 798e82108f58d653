"""Which signals, channels and features are subjects, and how are they kept?

Which signals has a circuit? One subject for every edge into a head, with what its writer put there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head, brief, head_name
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.records import Signal, Writer
from keyhole.circuits.text import node_label
from keyhole.errors import KeyholeError
from keyhole.features.contrast.finding import Feature
from keyhole.features.contrast.sums import Frame
from keyhole.features.discovery.one_head import HeadFeatures
from keyhole.files import json_text, require_file, write_at_once
from keyhole.intervene.cuts import fresh_run
from keyhole.models.numbers import exact_matmul, require_same_weights
from keyhole.naming.subjects.subject import Subject, SubjectKind, opposite, paired, require_head, rotates
from keyhole.qk.omega import Basis, omega
from keyhole.strict import Index, parse_json, read, read_text, require
from keyhole.tracing.writers import read_of

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing


def signal_subjects(circuit: Circuit, model: "Model | None" = None) -> list[Subject]:
    """The signals of a circuit, in the order of its edges; one from a file needs the `model` that made it."""
    run = fresh_run(circuit, model)
    found = []
    with exact_matmul():
        for number, edge in signal_edges(circuit):
            into = circuit.nodes[edge.receiver]
            assert into.layer is not None and into.head is not None
            one = _signal_subject(run, (into.layer, into.head), circuit.signal(edge), _label(circuit, edge.receiver))
            found.append(replace(one, id=f"{one.id} #{number}", about={**one.about, "edge": str(number)}))
    return found


def firing_subject(firing: "Firing", signal: Signal) -> Subject:
    """One signal of a firing that was explained."""
    head = (firing.layer, firing.head)
    into = node_label(Writer("head", *head, firing.dest, firing.src), firing.run.tokens)
    with exact_matmul():
        return _signal_subject(firing.run, head, signal, into)


def _signal_subject(run: "Run", head: Head, signal: Signal, into: str) -> Subject:
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
        return run.attention_run(head[0]).rule.scaling * (read @ om.G_d[head[1]])[ks]
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


# Which channels has a head? Each is two subjects: what u_k and v_k have in common, and what their opposites have.


def channel_subjects(model: "Model", head: Head, channels: Sequence[int] | None = None) -> list[Subject]:
    """Both signs of some channels of a head, or of all that it has: "3.1:4" and "3.1:4-"."""
    layer, index = head
    require_head(model, head)
    rank = int(omega(model, layer).rank[index])
    found = []
    for channel in range(rank) if channels is None else channels:
        directions = paired(model, head, "src", [channel], coordinates=torch.ones(1))
        name = f"{layer}.{index}:{channel}"
        about = {"channels": str(channel), "coordinates": told_coordinates(torch.ones(1)), "sign": "both positive"}
        one = Subject(name, "channel", head, *directions, about=about)
        other = opposite(one)
        found += [one, Subject(f"{name}-", "channel", head, other.query, other.key, about=other.about)]
    return found


# Which features of contrasts, and which discovered ones, can be looked for in any text? Fixed directions of q and k.
#
# A feature that was found with queries and keys turned back by RoPE is no such direction: it is refused, unless the
# model does not rotate.


def contrast_subjects(model: "Model", features: Sequence[Feature], frame: Frame) -> list[Subject]:
    """Every dimension of some features, with both signs; `frame` is that of the study which found them."""
    found: list[Subject] = []
    for feature in features:
        require_fixed(model, feature.head, frame, f"the feature {feature.name!r}")
        for k in range(feature.rank):
            name = f"{head_name(feature.head)} {feature.name} {k}"
            about = {"contrast": feature.name, "dimension": str(k)}
            query, key = (feature.U[:, k], 0.0), (feature.V[:, k], 0.0)
            found += _both("contrast", name, feature.head, query=query, key=key, about=about)
    return found


def discovered_subjects(model: "Model", features: HeadFeatures) -> list[Subject]:
    """Every discovered feature of a head, with both signs; the key's is turned where the two sides repel each other."""
    head = features.data.layer, features.data.head
    require_fixed(model, head, features.data.view.frame, "a discovered feature")
    found: list[Subject] = []
    for number, one in enumerate(features.discovery.features):
        sign = -1.0 if one.coupling < 0 else 1.0
        key = sign * one.key.direction, sign * one.key.offset
        about = {"feature": str(number), "share": f"{one.share:.3f}"}
        name = f"{head_name(head)} discovered {number}"
        query = one.query.direction, one.query.offset
        found += _both("discovered", name, head, query=query, key=key, about=about)
    return found


Direction = tuple[Tensor, float]  # and its offset


def _both(
    kind: SubjectKind, name: str, head: Head, *, query: Direction, key: Direction, about: dict[str, str]
) -> list[Subject]:
    """A subject and its opposite."""
    one = Subject(
        name, kind, head, query[0].float(), key[0].float(), query[1], key[1], {**about, "sign": "both positive"}
    )
    return [one, opposite(one)]


def require_fixed(model: "Model", head: Head, frame: Frame, what: str) -> None:
    """Refuse a frame in which a feature is no direction of queries and keys."""
    require_head(model, head)
    if frame != "post_rope" and rotates(model, head[0]):
        raise KeyholeError(
            f"{what} of head {head_name(head)} was found in the frame {frame!r}, where it turns with positions: find "
            "it again with the frame 'post_rope'."
        )


# How are features kept, to be named or looked for later? Their directions and whose they are, as one document.

SCHEMA = 1


class _Record(TypedDict):
    id: str
    kind: SubjectKind
    head: tuple[Index, Index]
    query: tuple[float, ...]
    key: tuple[float, ...]
    query_offset: float
    key_offset: float
    about: Mapping[str, str]


class _Document(TypedDict):
    schema: int
    model: Mapping[str, str]
    subjects: tuple[_Record, ...]


@dataclass(frozen=True, eq=False)
class StoredSubjects:
    """What was kept, of which model."""

    __repr__ = brief

    model: Mapping[str, str]  # its name and fingerprint
    subjects: tuple[Subject, ...]

    def of(self, model: "Model") -> tuple[Subject, ...]:
        """The subjects, if they are of these weights: in others, the same numbers are other directions."""
        refusal = f"these features are of {self.model['name']}, and {model.name} has other weights."
        require_same_weights(model.fingerprint(), self.model["fingerprint"], refusal)
        return self.subjects


def save_subjects(subjects: Sequence[Subject], model: "Model", path: str | Path) -> None:
    """Write subjects of one model as .json; the file appears whole or not at all."""
    document = {
        "schema": SCHEMA,
        "model": {"name": model.name, "fingerprint": model.fingerprint()},
        "subjects": [_plain(one) for one in subjects],
    }
    write_at_once(require_file(path, (".json",)), json_text(document) + "\n")


def load_subjects(path: str | Path) -> StoredSubjects:
    """Read them; anything damaged, foreign or of another schema is refused with the reason."""
    try:
        document = read(_Document, parse_json(read_text(path)))
        require(document["schema"] == SCHEMA, f"its schema is {document['schema']}, and {SCHEMA} is read here.")
        model, found = document["model"], tuple(_subject(one) for one in document["subjects"])
        require(model.keys() == {"name", "fingerprint"}, "the model should have exactly a name and a fingerprint.")
        require(bool(found), "it has no features.")
        require(len({one.id for one in found}) == len(found), "two features have the same id.")
    except KeyholeError as error:
        raise KeyholeError(f"{path} holds no features that can be read: {error}") from error
    return StoredSubjects(model, found)


def holds_subjects(path: str | Path) -> bool:
    """Is this such a file, and not a circuit? What is wrong with it is told when it is read."""
    try:
        document = parse_json(read_text(path))
    except KeyholeError:
        return False
    return isinstance(document, dict) and "subjects" in document


def _plain(one: Subject) -> dict[str, Any]:
    plain = {name: getattr(one, name) for name in _Record.__annotations__}
    return plain | {"query": one.query.tolist(), "key": one.key.tolist(), "about": dict(one.about)}


def _subject(record: _Record) -> Subject:
    require(bool(record["query"] and record["key"]), f"the feature {record['id']} has a direction without numbers.")
    values: dict[str, Any] = {**record}
    return Subject(**values | {side: torch.tensor(values[side]) for side in ("query", "key")})
