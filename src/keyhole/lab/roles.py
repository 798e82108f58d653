"""Which heads play which role? Found by where a model's heads look, and by what that does to the answer.

A head plays a role if it looks from dest at src, and clearly more than at any other actor of the task: the 95 %
interval of the difference over prompts lies above zero, for indirect objects in each order of the names by itself.
Otherwise a head that looks at all names alike, or always at the first one, would pass for a name mover.

Roles at END are said of heads that make the answer, so that these must also push it (`push.py`). What a name mover
writes at END must point to the answer; without an S-inhibition head's write there, which acts through name movers, the
answer must lose. Otherwise a head that looks at IO and writes against it would pass for a name mover.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.lab.emergence import Place, Push, pushes
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul
from keyhole.models.run import Run
from keyhole.tasks.example import Example

_ACTORS: dict[str, tuple[str, ...]] = {"ioi": ("IO", "S1", "S1+1", "S2"), "induction": ("A", "B")}
_ORDERS = ("ABBA", "BABA")
RULE = (  # for a reader of a result
    "A head has a role if it looks at the role's token clearly more than at any other actor, in each order of names. "
    "A name mover's write at END must also point from S to IO, and the logit difference must not rise without it; "
    "without an S-inhibition head's write there it must fall (95 % intervals over prompts). Other roles are by "
    "attention alone."
)


@dataclass(frozen=True)
class Role:
    """What a head is for: from the token `dest` of a task it looks at the token `src`, and may push the answer."""

    name: str
    dest: str
    src: str
    task: str = "ioi"
    early: bool = False  # possible in the first layer: it needs nothing that another head has written
    pushes: Literal["directly", "by_all_paths"] | None = None  # how it must push the answer, of roles at END


_S_INHIBITION = Role("S-inhibition", "END", "S2", pushes="by_all_paths")
_NAME_MOVER = Role("name mover", "END", "IO", pushes="directly")
IOI_ROLES: tuple[Role, ...] = (  # the paper's, all of them in indirect objects
    _S_INHIBITION,
    _NAME_MOVER,
    Role("induction", "S2", "S1+1"),
    Role("duplicate token", "S2", "S1", early=True),
    Role("previous token", "S1+1", "S1", early=True),
)
ROLES: tuple[Role, ...] = (
    Role("previous token", "B", "A", "induction", early=True),
    Role("induction", "END", "B", "induction"),
    Role("duplicate token", "S2", "S1", early=True),
    Role("induction in ioi", "S2", "S1+1"),
    _S_INHIBITION,
    _NAME_MOVER,
)


@dataclass(frozen=True)
class Played:
    """A head in a role, how much of its attention it gives to it, and what it does to the answer."""

    place: Place
    attention: float  # mean over the prompts
    push: Push | None = None  # of roles at END that must push the answer, where that was asked


@dataclass(frozen=True)
class Looks:
    """How much attention every head gives to a role, prompt by prompt, and how much more than to others."""

    role: Role
    attention: Float[Tensor, "prompt layer head"]
    orders: Mapping[str, int]  # how many prompts name the two people in each order
    leads: Mapping[tuple[str, str], Float[Tensor, "_ layer head"]]  # in prompts of one order, over one other actor

    @property
    def mean(self) -> Float[Tensor, "layer head"]:
        """Over the prompts."""
        return self.attention.mean(0)

    @property
    def clear(self) -> Bool[Tensor, "layer head"]:
        """Which heads look at src more than at every other actor, in every order, beyond doubt?"""
        sure = torch.ones_like(self.attention[0], dtype=torch.bool)
        for lead in self.leads.values():
            sure &= _low(lead) > 0
        return sure


def find_roles(
    model: Model,
    prompts: Sequence[Example],
    roles: Sequence[Role] = ROLES,
    *,
    heads: int = 1,
    threshold: float = 0.3,
    required: bool = True,
    clear: bool = True,
) -> list[Played]:
    """Which heads of a (finished) model play these roles? Up to `heads` a role, the strongest first.

    A head plays a role if `plays` says so, and of several the one to which it gives most attention. The strongest push
    the answer most or, in roles by attention alone, look most. A role without any head is refused, or left out where
    `required` is False: small models often do a task without some of them.
    `clear=False` asks for the attention alone, which shows no more than that heads look there: neither that they look
    nowhere else, nor that they push the answer.

    Args:
        model: A finished model.
        prompts: Examples of the tasks of these roles.
        roles: The roles. Default: those of `ROLES`.
        heads: Heads of a role, at most.
        threshold: Attention that a head must give to the token of its role.
        required: Refuse a role that no head plays; without, it is left out.
        clear: Ask also that heads look nowhere else, and push the answer.

    >>> import keyhole
    >>> from keyhole.tasks import ioi
    >>> played = find_roles(keyhole.load(), ioi(8, 0), ROLES[2:3], required=False, clear=False)
    >>> {each.place.role for each in played} <= {"duplicate token"}
    True
    """
    if heads < 1:
        raise KeyholeError(f"{heads} heads a role were asked for: give one or more.")
    ran = {task: _ran(model, prompts, task) for task in dict.fromkeys(role.task for role in roles)}
    casts = [_cast(model, ran[role.task], role, threshold, clear=clear) for role in roles]
    given = torch.stack([torch.where(cast.fits, cast.looks.mean, -1.0) for cast in casts])
    strongest = given.argmax(0)
    cast_of_all: list[Played] = []
    for number, (role, cast) in enumerate(zip(roles, casts, strict=True)):
        fitting, looks = cast.fits & (strongest == number), cast.looks
        if required and not fitting.any():
            raise KeyholeError(_missing(model, cast, threshold))
        played = []
        for row, index in fitting.nonzero().tolist():
            head = model.attention_layers[row], index
            place = Place(role.name, head, role.dest, role.src, role.task)
            played.append(Played(place, float(looks.mean[row, index]), cast.pushes.get(head)))
        cast_of_all += sorted(played, key=lambda player: -_strength(player, role))[:heads]
    return cast_of_all


def plays(
    model: Model, prompts: Sequence[Example], role: Role, *, threshold: float = 0.3
) -> Bool[Tensor, "layer head"]:
    """Which heads play this role, whatever else they do?

    They give `threshold` of their attention or more, clearly more than to any other actor of the task in each order of
    the names, are not in the first layer if the role needs what other heads have written, and push the answer if the
    role says so.
    """
    return _cast(model, _ran(model, prompts, role.task), role, threshold, clear=True).fits


def role_attention(model: Model, prompts: Sequence[Example], role: Role) -> Float[Tensor, "layer head"]:
    """How much attention does each head give to a role, on average over the prompts of its task?"""
    return _looks(model, _ran(model, prompts, role.task), role).mean


def _strength(played: Played, role: Role) -> float:
    if played.push is None:
        return played.attention
    return played.push.direct[0] if role.pushes == "directly" else played.push.total[0]


@dataclass(frozen=True)
class _Cast:
    """Which heads fit a role, and what those that look there do to the answer."""

    looks: Looks
    fits: Bool[Tensor, "layer head"]
    pushes: Mapping[Head, Push]  # of heads that look there; none for roles that are told by attention alone


def _cast(model: Model, ran: Sequence[tuple[Example, Run]], role: Role, threshold: float, *, clear: bool) -> _Cast:
    looks = _looks(model, ran, role)
    fits = _fits(looks, threshold, clear=clear)
    if role.pushes is None or not clear:
        return _Cast(looks, fits, {})
    places = {(model.attention_layers[row], index): (row, index) for row, index in fits.nonzero().tolist()}
    pushed = pushes(ran, list(places))  # of few heads: each is silenced in every prompt
    for head, push in pushed.items():
        fits[places[head]] = push.directly if role.pushes == "directly" else push.by_all_paths
    return _Cast(looks, fits, pushed)


def _ran(model: Model, prompts: Sequence[Example], task: str) -> list[tuple[Example, Run]]:
    chosen = [example for example in prompts if example.task == task]
    if not chosen:
        raise KeyholeError(f"a role needs prompts of the task {task!r}, but there are none: give some.")
    return list(zip(chosen, model.run_many([example.text for example in chosen]), strict=True))


def _looks(model: Model, ran: Sequence[tuple[Example, Run]], role: Role) -> Looks:
    others = [actor for actor in _ACTORS.get(role.task, ()) if actor != role.src]
    orders = Counter(_order(example) for example, _ in ran)
    attention: list[Tensor] = []
    leads: dict[tuple[str, str], list[Tensor]] = {}
    for example, run in ran:
        dest, src = example.position(run, role.dest), example.position(run, role.src)
        with exact_matmul():
            rows = [
                run.attention_run(layer).weights(range(model.dims.heads), [dest])[:, 0]
                for layer in model.attention_layers
            ]
        weights = torch.stack(rows).double().cpu()
        attention.append(weights[..., src])
        for other in others:
            at = example.position(run, other)
            if at < dest:  # what comes later cannot be looked at
                leads.setdefault((_order(example), other), []).append(weights[..., src] - weights[..., at])
    return Looks(role, torch.stack(attention), orders, {key: torch.stack(lead) for key, lead in leads.items()})


def _order(example: Example) -> str:
    order = example.template.partition("-")[0]
    return order if order in _ORDERS else ""


def _fits(looks: Looks, threshold: float, *, clear: bool) -> Bool[Tensor, "layer head"]:
    fits = looks.mean >= threshold
    if not looks.role.early:
        fits[0] = False
    if not clear:
        return fits
    counts = [looks.orders.get(order, 0) for order in (_ORDERS if looks.role.task == "ioi" else looks.orders)]
    if min(counts) < 2:
        raise KeyholeError(
            f"whether a head plays the role {looks.role.name!r} shows in two prompts or more, of each order of names "
            f"(ABBA, BABA) where there are two, but only {min(counts)} are given of one: give more prompts."
        )
    return fits & looks.clear


def _low(values: Float[Tensor, "prompt layer head"]) -> Float[Tensor, "layer head"]:
    """The lower end of the 95 % interval of the mean (Student's t) over prompts."""
    from scipy.special import stdtrit

    n = len(values)
    return values.mean(0) - float(stdtrit(n - 1, 0.975)) * values.std(0) / math.sqrt(n)


def _missing(model: Model, cast: _Cast, threshold: float) -> str:
    role, best = cast.looks.role, float(cast.looks.mean.max())
    if cast.fits.any():
        why = "those that do play other roles more"
    elif cast.pushes:
        listed = "; ".join(f"{layer}.{head} {push}" for (layer, head), push in cast.pushes.items())
        why = f"those that look there do not push the answer ({listed})"
    elif best >= threshold:
        why = f"the best one gives {best:.2f} of its attention, but not clearly more than to others, or in layer 0"
    else:
        why = f"the best one gives {best:.2f} of its attention, less than {threshold}"
    return (
        f"no head of {model.name} plays the role {role.name!r}: from {role.dest} to {role.src} {why}. Leave the role "
        "out or lower threshold."
    )


def bystanders(model: Model, played: Sequence[Played], *, seed: int = 0) -> list[Place]:
    """The same places seen by heads without a role: does sparsity come with the role, or with any training?

    Each head with a role is given a random partner among those that play none.
    """
    busy = {player.place.head for player in played}
    idle = [(layer, head) for layer in model.attention_layers for head in range(model.dims.heads)]
    idle = [head for head in idle if head not in busy]
    if not idle:
        raise KeyholeError(f"every head of {model.name} plays a role, so none can stand by: raise the threshold.")
    rng = random.Random(seed)
    pairs: dict[tuple[str, Head], Place] = {}
    for player in played:
        partner = rng.choice(idle)
        pairs[player.place.role, partner] = replace(player.place, head=partner)
    return list(pairs.values())
