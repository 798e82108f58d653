"""Which prompts speak for a family? Some, drawn by a seed, with their circuits and what their tokens are called."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example
from keyhole.tasks.places import place_names

if TYPE_CHECKING:
    from keyhole.store.store import Store


@dataclass(frozen=True)
class Member:
    """One circuit, and what its tokens are called (None: its prompt has no roles)."""

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
    """At most n of these prompts, in an order of the seed's; some are left out."""
    pool = sorted(set(prompts) - set(but))
    chosen = random.Random(seed).sample(pool, min(n, len(pool)))
    asked = {outcome.index: outcome for outcome in store.outcomes({"prompt": sorted(chosen)})}
    found = [asked[prompt] for prompt in chosen]
    return [Member.of(one.circuit, one.example, one.index) for one in found if one.circuit is not None]
