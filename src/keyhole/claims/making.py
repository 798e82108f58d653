"""Which claims follow from what was found? From a circuit, an edge, a firing and a contrast's head, at its own tokens.

A finding is of one prompt, and a claim of many: the prompt comes as an example, whose roles name its tokens in others.
What was found on a prompt is no evidence for the claim, which is tested on the prompts of its task.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keyhole.brief import head_name
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.claims.records import Claim, Matches, Moves, Needs, Rewrite, Sender, Suffices, TaskPrompts
from keyhole.errors import KeyholeError
from keyhole.qk.omega import omega
from keyhole.strict import quoted
from keyhole.tasks.catalogue import CATALOGUE, like
from keyhole.tasks.example import START, Example

if TYPE_CHECKING:
    from keyhole.circuits.graph import Origin
    from keyhole.features.contrast.found import FoundHead
    from keyhole.models.model import Model
    from keyhole.tracing.firing import Firing

Prompts = Sequence[Example] | TaskPrompts | str | None
_END = "END"
_LIKE = 32  # prompts of a circuit's own template


def circuit_claims(
    circuit: Circuit, example: Example, *, model: "Model | None" = None, prompts: Prompts = None, most: int = 8
) -> tuple[Claim, ...]:
    """What a circuit says of its task: that it suffices, what its heads move, which signals the answer needs.

    Heads and signals of the largest influence come first, each claim once.
    """
    model = circuit.run.model if model is None and circuit.run is not None else model
    claims: list[Claim] = []
    if model is not None and example.task in CATALOGUE:
        prompts_like_it, others = (tuple(like(example, model, _LIKE, seed)) for seed in (0, 1))
        claims.append(
            Suffices(
                claim=f"The circuit traced from {quoted(example.text)} carries the answer",
                circuit=circuit,
                prompts=prompts_like_it,
                rewrites=(Rewrite("other words", others),),
            )
        )
    origin = circuit.edges.origin
    assert origin is not None
    for edge in sorted(circuit.edges, key=lambda edge: -(edge.influence or 0.0)):
        try:
            claim = edge_claim(edge, origin, example, prompts=prompts)
        except KeyholeError:  # an edge that says nothing about a head
            continue
        if all(claim.says != known.says for known in claims):
            claims.append(claim)
    return tuple(claims[: max(1, most)])


def edge_claim(edge: Edge, origin: "Origin", example: Example, *, prompts: Prompts = None) -> Claim:
    """What an edge says: a head moves a token to where it is read, or a signal makes a head look there."""
    sender, receiver = origin.nodes[edge.sender], origin.nodes[edge.receiver]
    tested_on = _prompts(example, prompts)
    name = _Names(example, origin.tokens)
    if edge.side == "dest" or edge.side == "src":
        assert receiver.layer is not None and receiver.head is not None
        moved = name.of(sender.src) if sender.kind == "head" else None
        who = Sender(sender.kind, sender.layer or 0, sender.head, moved)  # type: ignore[arg-type]
        head = (receiver.layer, receiver.head)
        dest, src = name.of(receiver.dest), name.of(receiver.src)
        return Needs(
            claim=f"The answer needs what {who} says to head {head_name(head)}, which looks from {dest} at {src}",
            head=head,
            src=src,
            dest=dest,
            channels=edge.channels,
            sender=who,
            side=edge.side,
            prompts=tested_on,
        )
    return _moves(sender, name, tested_on)


def _moves(node: Node, name: "_Names", prompts: Any) -> Moves:
    if node.kind != "head" or node.layer is None or node.head is None:
        raise KeyholeError(f"a node of kind {node.kind} moves nothing between tokens: take an edge of a head.")
    head, dest, src = (node.layer, node.head), name.of(node.dest), name.of(node.src)
    sentence = f"Head {head_name(head)} moves {src} to {dest}"
    return Moves(claim=sentence, head=head, src=src, dest=dest, prompts=prompts)


def firing_claim(firing: "Firing", example: Example, *, prompts: Prompts = None) -> Matches:
    """What a firing says: the channels of its signals are why the head looks there."""
    channels = sorted({k for side in firing.sides for signal in side.signals for k in signal.channels})
    head, name = (firing.layer, firing.head), _Names(example, firing.run.tokens)
    if not channels:
        raise KeyholeError(f"head {head_name(head)} has no signals here, and so no channels to claim anything of.")
    dest, src = name.of(firing.dest), name.of(firing.src)
    which = ", ".join(map(str, channels))
    return Matches(
        claim=f"Channels {which} of head {head_name(head)} are why it looks from {dest} at {src}",
        head=head,
        src=src,
        dest=dest,
        channels=tuple(channels),
        prompts=_prompts(example, prompts),
    )


def contrast_claim(
    found: "FoundHead", src: str, *, dest: str = _END, prompts: Prompts, channels: int | None = None
) -> Matches:
    """What a contrast's head says: the channels that its feature lies in most are why it looks at `src`.

    As many as the feature has dimensions, unless said otherwise: those with most of its query and key subspaces.
    """
    feature, (layer, index) = found.feature, found.head
    if found.study.test.frame == "relative":
        raise KeyholeError("a feature in the frame 'relative' lies in no channels of its head: take another frame.")
    if not feature.rank:
        raise KeyholeError(f"head {head_name(found.head)} has no feature of this contrast: there is nothing to claim.")
    om = omega(found.study.test.model, layer)
    rank = int(om.rank[index])
    query = om.G_d[index, :, :rank].double().T @ feature.U.double()
    key = om.G_s[index, :rank].double() @ feature.V.double()
    size = query.norm(dim=1) * key.norm(dim=1)
    count = min(rank, max(1, feature.rank if channels is None else channels))
    chosen = tuple(sorted(size.argsort(descending=True)[:count].tolist()))
    which = ", ".join(map(str, chosen))
    return Matches(
        claim=f"Channels {which} of head {head_name(found.head)} find {src} by {feature.name!r}",
        head=found.head,
        src=src,
        dest=dest,
        channels=chosen,
        prompts=_prompts(None, prompts),
    )


def _prompts(example: Example | None, prompts: Prompts) -> Any:
    """What was given, or the prompts of the example's task."""
    if prompts is not None:
        return TaskPrompts(prompts) if isinstance(prompts, str) else prompts
    if example is None or example.task not in CATALOGUE:
        task = "" if example is None else f" {quoted(example.task)} is no task of the catalogue."
        raise KeyholeError(f"a claim needs many prompts.{task} Give prompts: a task, or a list of examples.")
    return TaskPrompts(example.task)


class _Names:
    """What the tokens of a prompt are called: by role, or by how far they stand after one."""

    def __init__(self, example: Example, tokens: Sequence[str]) -> None:
        places = example.places(tokens)
        self.at = {0: START}
        for role in sorted(places, key=lambda role: (role != _END, len(role), role)):
            self.at.setdefault(places[role], role)

    def of(self, token: int) -> str:
        """The name of a token."""
        since = max(place for place in self.at if place <= token)
        return self.at[since] if since == token else f"{self.at[since]}+{token - since}"
