"""A machine, a prompt that it answers, and the circuit behind the answer."""

from dataclasses import dataclass

from keyhole.lab.known.machine import Stream, transformer
from keyhole.lab.known.truth import Truth, true_circuit
from keyhole.lab.known.words import places, tokenizer
from keyhole.models.loading.load import load
from keyhole.models.model import Model

PROMPT = "French : big cat , red dog , old sun . red"


@dataclass(frozen=True)
class Known:
    """What to trace, and what a right circuit has."""

    model: Model
    prompt: str
    answer: str
    against: str
    truth: Truth

    @classmethod
    def of(cls, model: Model, prompt: str) -> "Known":
        """What is true of a prompt."""
        at = places(prompt)
        return cls(model, prompt, at.answer, at.against, true_circuit(at, last=model.dims.layers - 1))

    def ask(self, prompt: str) -> "Known":
        """The same machine with another prompt."""
        return Known.of(self.model, prompt)


def build(prompt: str = PROMPT, *, seed: int | None = None, backup: bool = False) -> Known:
    """The machine of `machine.py`, with a seed in directions turned at random, and a prompt of its words (`words.py`).

    `backup`: with a head (3.0) that stands in for another (2.0) when that is gone, and does nothing before.

    >>> known = build()
    >>> known.answer, known.against
    ('chien', 'Hund')
    >>> known.ask("Berlin : new sun . new").answer
    'Sonne'
    """
    return Known.of(load((transformer(Stream.make(seed), backup=backup), tokenizer())), prompt)
