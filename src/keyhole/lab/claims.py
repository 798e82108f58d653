"""Does the test of claims tell true from false? Claims whose truth is known, about the machine and the organism.

    for planted in planted_claims(seed=0):
        result = keyhole.claim(planted.model, planted.claim)
        result.passes == planted.holds

Half of them are true. The others look true, each by a trap: the right head with another token, the right token with
another head, an effect of size alone, channels or writers that are not the ones, a few prompts on which it happens by
chance. What is true of the machine follows from its weights; what is true of the organism was found by removing every
head's every token on other prompts than these (its roles: 1.6 and 1.7 move names, letters and copied words, 1.4 says
who came twice, 1.5 moves the name that decides a pronoun).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np

from keyhole.brief import Head
from keyhole.circuits.circuit import Circuit
from keyhole.claims import Claim, Exchange, Matches, Moves, Needs, Rewrite, Sender, Suffices, TaskPrompts
from keyhole.claims.cases import cases_of
from keyhole.claims.measuring import Written, lost, mean_answer
from keyhole.lab.known import build
from keyhole.lab.known_machine import CUES, ID, NOUNS, TOPICS, WORDS, places
from keyhole.models.load import load
from keyhole.models.model import Model
from keyhole.settings.claims import ClaimSettings
from keyhole.tasks.catalogue import examples
from keyhole.tasks.example import Example

_CUE_CHANNELS = tuple(sorted(len(WORDS) - 1 - ID[cue] for cue in CUES))  # of induction: the last word is the strongest
_OTHER_CHANNELS = tuple(sorted(len(WORDS) - 1 - ID[word] for word in (*NOUNS, "chat")))
_UNRELATED = (  # which the machine can read, and has no answer for
    "cat . sun : old dog",
    "old , dog : red . sun",
    "Hund : chat , new sun . cat",
    "soleil . Katze , Hund : big",
)


@dataclass(frozen=True)
class PlantedClaim:
    """A claim whose truth is known."""

    model: Model
    claim: Claim
    holds: bool
    trap: str  # by what a false one looks true; of a true one, what it is about


def planted_claims(
    seed: int = 0, *, n: int = 24, settings: ClaimSettings | None = None, only: Collection[str] | None = None
) -> tuple[PlantedClaim, ...]:
    """Twelve true and twelve false claims, with prompts, machines and controls of this seed.

    Args:
        seed: Of prompts, machines and controls.
        n: How many prompts each claim has.
        settings: What they are held to; the usual settings by default.
        only: Those of these traps alone.

    >>> [planted.holds for planted in planted_claims(only=["a name is moved", "by chance on four prompts"])]
    [True, False]
    """
    how = replace(settings or ClaimSettings(), seed=seed)
    planted = (*_of_machine(seed, n, how), *_of_organism(seed, n, how))
    return tuple(make() for trap, make in planted if only is None or trap in only)


Planters = list[tuple[str, Callable[[], PlantedClaim]]]


def _planter(
    model: Model, holds: bool, trap: str, claim: Callable[[], Claim]
) -> tuple[str, Callable[[], PlantedClaim]]:
    """A planted claim that is made when it is wanted: some take a trace, or many passes."""
    return trap, lambda: PlantedClaim(model, claim(), holds, trap)


# The machine: what its heads do is written into its weights.


def machine_prompts(n: int, seed: int, pairs: Sequence[int] = (3,), pair: int | None = None) -> tuple[Example, ...]:
    """Prompts of the machine with their roles; so many pairs of words, by turns, of which this one comes again.

    >>> [example] = machine_prompts(1, 0, pairs=(2,))
    >>> sorted(example.roles)
    ['BEFORE', 'END', 'NEXT', 'OTHER', 'TOPIC']
    """
    rng, prompts = Random(seed), dict[str, Example]()
    while len(prompts) < n:
        example = _machine_prompt(rng, pairs[len(prompts) % len(pairs)], pair)
        prompts[example.text] = example
    return tuple(prompts.values())


def _machine_prompt(rng: Random, count: int, pair: int | None) -> Example:
    topic, cues = rng.choice(list(TOPICS)), rng.sample(CUES, min(count, len(CUES)))
    nouns = [rng.choice(list(NOUNS)) for _ in cues]
    which = rng.randrange(len(cues)) if pair is None else pair
    nouns = [noun if noun != nouns[which] or i == which else _other_noun(rng, noun) for i, noun in enumerate(nouns)]
    text = f"{topic} : " + " , ".join(f"{cue} {noun}" for cue, noun in zip(cues, nouns, strict=True))
    text += f" . {cues[which]}"
    at = places(text)
    words, spans = text.split(), list[tuple[int, int]]()
    for word in words:
        start = spans[-1][1] + 1 if spans else 0
        spans.append((start, start + len(word)))
    other = next(i for i, word in enumerate(words) if word in NOUNS and i + 1 != at.next)
    tokens = {"TOPIC": at.topic, "BEFORE": at.before, "NEXT": at.next, "END": at.end, "OTHER": other + 1}
    roles = {role: spans[token - 1] for role, token in tokens.items()}
    return Example("machine", text, at.answer, (at.against,), (at.answer,), roles, str(count), f" {at.answer}")


def _other_noun(rng: Random, noun: str) -> str:
    return rng.choice([other for other in NOUNS if other != noun])


def _of_machine(seed: int, n: int, settings: ClaimSettings) -> Planters:
    model, prompts = build(seed=seed).model, machine_prompts(n, 10 * seed)
    rewrites = (
        Rewrite("other words", machine_prompts(n, 10 * seed + 1)),
        Rewrite("shorter and longer lists", machine_prompts(n, 10 * seed + 2, pairs=(2, 4))),
    )
    common: dict[str, Any] = {
        "prompts": prompts,
        "rewrites": rewrites,
        "unrelated": _UNRELATED,
        "settings": settings,
    }

    def moves(head: Head, src: str, dest: str = "END") -> Moves:
        return Moves(claim=f"Head {head[0]}.{head[1]} moves {src} to {dest}", head=head, src=src, dest=dest, **common)

    def needs(sender: Sender, side: Any = "src", channels: tuple[int, ...] = _CUE_CHANNELS) -> Needs:
        return Needs(
            claim=f"The answer needs what {sender} says to head 2.0 ({side} side)",
            head=(2, 0),
            src="NEXT",
            channels=channels,
            sender=sender,
            side=side,
            negatives=Exchange("BEFORE"),
            **common,
        )

    def matches(channels: tuple[int, ...], src: str = "NEXT") -> Matches:
        words = "cues" if channels == _CUE_CHANNELS else "nouns"
        claim = f"Channels of head 2.0 match {words}, and find {src}"
        return Matches(claim=claim, head=(2, 0), src=src, channels=channels, negatives=Exchange("BEFORE"), **common)

    def carries() -> Suffices:
        alike = machine_prompts(n, 10 * seed + 3, pair=1)  # a circuit stands at the tokens of its template
        first = alike[0]
        return Suffices(
            claim="The circuit traced for one prompt carries the answers of its template",
            circuit=model.run(first.text).trace(first.answer, against=first.against[0], through="mlps"),
            negatives=Exchange("NEXT"),
            prompts=alike,
            rewrites=(Rewrite("other words", machine_prompts(n, 10 * seed + 4, pair=1)),),
            settings=settings,
        )

    previous = Sender("head", 1, 0, "BEFORE")
    false_head = "right token, by another head that looks there too"
    return [
        _planter(model, True, "the value of the token that is found", lambda: moves((2, 0), "NEXT")),
        _planter(model, True, "a value that a later head finds a token by", lambda: moves((1, 0), "BEFORE", "NEXT")),
        _planter(model, True, "channels of a match", lambda: matches(_CUE_CHANNELS)),
        _planter(model, True, "a signal on the side of keys", lambda: needs(previous)),
        _planter(model, True, "a signal on the side of queries", lambda: needs(Sender("embedding", 0), "dest")),
        _planter(model, True, "a circuit that suffices", carries),
        _planter(model, False, "right head, wrong token", lambda: moves((2, 0), "OTHER")),
        _planter(model, False, false_head, lambda: moves((2, 2), "NEXT")),
        _planter(model, False, "channels of other words", lambda: matches(_OTHER_CHANNELS)),
        _planter(model, False, "a writer that stands beside the right one", lambda: needs(Sender("head", 1, 1))),
        _planter(model, False, "right writer, other channels", lambda: needs(previous, channels=_OTHER_CHANNELS)),
        _planter(
            build(seed=seed, loud=True).model, False, "an effect of the size of a write", lambda: moves((2, 2), "NEXT")
        ),
    ]


# The organism: what its heads do was found by removal on other prompts.


def _of_organism(seed: int, n: int, settings: ClaimSettings) -> Planters:
    model = _organism()

    def task(name: str, **choices: Any) -> TaskPrompts:
        return TaskPrompts(name, n, seed, choices)

    def moves(head: Head, src: str, prompts: Any, **more: Any) -> Moves:
        claim = f"Head {head[0]}.{head[1]} moves {src} to END"
        return Moves(claim=claim, head=head, src=src, prompts=prompts, settings=settings, **more)

    ioi, wording = task("ioi"), {"wordings": [0], "order": "ABBA"}

    def needs(head: Head) -> Needs:
        return Needs(
            claim=f"Head {head[0]}.{head[1]} finds the receiver by what MLP 0 says of a name, and the answer needs it",
            head=head,
            src="IO",
            channels=(5, 12),
            sender=Sender("mlp", 0),
            prompts=ioi,
            negatives=Exchange("IO", by="PLACE"),  # which is no name
            settings=settings,
        )

    def carries(circuit: Circuit) -> Suffices:
        return Suffices(
            claim="The circuit says which of the two receives it",
            circuit=circuit,
            keeps=0.5,
            prompts=TaskPrompts("ioi", n, seed + 1, wording),
            negatives=Exchange("S2", by="IO"),  # the other one receives it then
            settings=settings,
        )

    def by_chance(most: int) -> Moves:
        chosen = tuple(_best_by_chance(model, seed)[:most])
        return moves((1, 3), "IO", chosen, negatives=Exchange("IO"), rewrites=_fresh(model, seed))

    def finds_a_name() -> Matches:
        return Matches(
            claim="Channels 0 and 1 of head 1.5 find the name that decides a pronoun",
            head=(1, 5),
            src="NAME",
            channels=(0, 1),
            prompts=task("pronouns"),
            negatives=Exchange("NAME", by="NOUN"),
            settings=settings,
        )

    copies = task("induction", length=[4, 12])
    return [
        _planter(model, True, "a name is moved", lambda: moves((1, 6), "IO", ioi)),
        _planter(model, True, "who came twice is said", lambda: moves((1, 4), "S2", ioi)),
        _planter(model, True, "a word is copied", lambda: moves((1, 7), "B", copies)),
        _planter(model, True, "channels that find a name", finds_a_name),
        _planter(model, True, "a signal that an answer needs", lambda: needs((1, 6))),
        _planter(model, True, "a circuit that says who receives", lambda: carries(_organism_circuits()[0])),
        _planter(model, False, "right head, the other name", lambda: moves((1, 6), "S1", ioi)),
        _planter(model, False, "right token, another head", lambda: moves((1, 1), "IO", ioi)),
        _planter(model, False, "right signal, into another head that looks there too", lambda: needs((1, 7))),
        _planter(model, False, "a circuit that lets any name through", lambda: carries(_organism_circuits()[1])),
        _planter(model, False, "by chance on four prompts", lambda: by_chance(4)),
        _planter(model, False, "by chance on prompts that were chosen for it", lambda: by_chance(14)),
    ]


@cache
def _organism() -> Model:
    return load()


@cache
def _organism_circuits() -> tuple[Circuit, Circuit]:
    """A circuit that says who receives, and one that makes any name likely: by the answer's log-probability."""
    prompts = examples("ioi", _organism(), 16, 0, wordings=[0], order="ABBA")
    run, first = _organism().run(prompts[0].text), prompts[0]
    return run.sufficient(first.answer, against=first.wrong, like=prompts), run.sufficient(first.answer, like=prompts)


def _fresh(model: Model, seed: int) -> tuple[Rewrite, ...]:
    """Prompts that nobody has chosen."""
    return (Rewrite("prompts that were not chosen", tuple(examples("ioi", model, 16, seed + 500))),)


def _best_by_chance(model: Model, seed: int) -> list[Example]:
    """Prompts on which a head that hardly moves the receiver happens to: the best of many."""
    cases = cases_of(model, "many", examples("ioi", model, 160, seed + 100))
    written = Written((1, 3), "END", "IO")
    effects = lost(model, cases.cases, lambda case: [written.edit(case)]) / mean_answer(cases)
    return [cases.cases[i].example for i in np.argsort(-effects)[:14]]
