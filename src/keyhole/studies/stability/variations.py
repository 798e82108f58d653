"""What can be changed a little about a prompt? Precision, threshold, wording, a name. And circuits after a change."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.models.load import load
from keyhole.models.tokens import one_token_words
from keyhole.qk.firings import dynamic_tau
from keyhole.settings.tracing import Probability, Tau, Through, TraceSettings
from keyhole.tasks.answers import answer_ids, answered
from keyhole.tasks.copying import ioi_example, ioi_words
from keyhole.tasks.example import Example
from keyhole.tracing.batch import Untraced
from keyhole.tracing.trace import trace_many

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store


@dataclass(frozen=True)
class Variation:
    """A change of the prompt, of how it is traced, or of the model's precision. What is None stays as it is."""

    name: str
    example: Callable[[Example], Example | None] | None = None  # None comes back where it does not fit
    settings: Callable[[TraceSettings], TraceSettings] | None = None
    dtype: torch.dtype | None = None
    weights_only: bool = False  # weights are rounded to `dtype`, and computed with as before


def usual(model: "Model", examples: Sequence[Example], *, seed: int = 0) -> list[Variation]:
    """The usual changes: lower precision, half and double tau; for indirect objects, another wording and names."""
    precision = model.hf.dtype
    variations = [Variation("nothing: traced again")]
    variations += [Variation(_name(kind), dtype=kind) for kind in (torch.bfloat16, torch.float16) if kind != precision]
    if precision == torch.float32:  # activations of some models are too large for half precision
        variations.append(Variation("weights in bfloat16", dtype=torch.bfloat16, weights_only=True))
    variations += [
        Variation("half of tau", settings=lambda how: scaled_tau(how, 0.5)),
        Variation("double tau", settings=lambda how: scaled_tau(how, 2.0)),
    ]
    if all(_is_ioi(example) for example in examples):
        rng = random.Random(seed)
        names = one_token_words(model, ioi_words(examples[0]).names)
        variations += [
            Variation("another wording", example=lambda example: reworded(example, rng)),
            Variation("another receiver", example=lambda example: renamed(example, "IO", names, rng)),
            Variation("another giver", example=lambda example: renamed(example, "S", names, rng)),
        ]
    return variations


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- settings --------------------------------------------------------------------------------------------------------


def scaled_tau(settings: TraceSettings, by: float) -> TraceSettings:
    """The same settings with a multiple of the threshold, below 1, so that something is always traced."""
    was = settings.tau
    if callable(was):
        raise KeyholeError("tau is a function here, which cannot be scaled: give 'dynamic' or a number.")
    tau: Tau = (lambda dest: min(0.99, by * dynamic_tau(dest + 1))) if isinstance(was, str) else min(0.99, by * was)
    return replace(settings, tau=tau)


_KEYS = {"tau": "tau", "keys": "keys", "sinks": "first_token"}  # of a store, and the settings that they hold


def settings_of(store: "Store") -> TraceSettings:
    """How the circuits of a store were traced, for tracing others alike."""
    stored = store.manifest.settings
    through = {name: stored[name] for name in ("cover", "eps", "values", "constants") if name in stored}
    rule = stored.get("seeds")
    return TraceSettings(
        metric=Probability(stored["seed_tau"]) if rule == "prob" else "linear" if rule == "linear" else None,
        through="heads" if stored.get("through") == "heads" else Through(**through),
        **{field: stored[key] for key, field in _KEYS.items() if key in stored},
    )


def rounded(model: "Model", dtype: torch.dtype, *, weights_only: bool = False) -> "Model":
    """The same model in another precision, or only its weights rounded to it; a copy."""
    copied = copy.deepcopy(model.hf).to(dtype)
    return load((copied.to(model.hf.dtype) if weights_only else copied, model.tokenizer))


# -- indirect objects ------------------------------------------------------------------------------------------------


def reworded(example: Example, rng: random.Random) -> Example | None:
    """The same people, place and thing, in the same order, in another wording of the task."""
    wordings, number = ioi_words(example).wordings, int(example.labels["wording"])
    slots = [slot for slot in ("PLACE", "OBJECT") if slot in example.roles]
    others = [i for i, text in enumerate(wordings) if i != number and all(f"{{{slot}}}" in text for slot in slots)]
    return None if not others else _filled(example, rng.choice(others), rng)


def renamed(example: Example, role: str, names: Sequence[str], rng: random.Random) -> Example | None:
    """The same words with another name for the receiver (IO) or the giver (S)."""
    people = {"IO": example.labels["IO"], "S": example.labels["S"]}
    others = [name for name in names if name not in people.values()]
    if not others:
        return None
    people[role] = rng.choice(others)
    return with_names(example, people["IO"], people["S"])


def with_names(example: Example, receiver: str, giver: str) -> Example:
    """The same words with these two names."""
    return _filled(example, int(example.labels["wording"]), random.Random(0), IO=receiver, S=giver)


def _filled(example: Example, wording: int, rng: random.Random, **people: str) -> Example:
    """A wording of the example's own list with its people and things; a place or thing it lacks is drawn."""
    lists, said = ioi_words(example), {**example.labels, **people}
    place, thing = (
        example.word(slot) if slot in example.roles else rng.choice(pool)
        for slot, pool in (("PLACE", lists.places), ("OBJECT", lists.objects))
    )
    labels = {"wordings": said["wordings"], "wording": str(wording)}
    return ioi_example(lists.wordings[wording], said["order"], (said["IO"], said["S"]), (place, thing), labels)


def _is_ioi(example: Example) -> bool:
    """Is it an example of Keyhole's own task, which can be written with other words?"""
    if not {"wordings", "wording", "order", "IO", "S"} <= set(example.labels) or example.task != "ioi":
        return False
    return _filled(example, int(example.labels["wording"]), random.Random(0)).text == example.text


# Circuits after a change, or the reason why there is none.

_TOGETHER = 8


@dataclass(frozen=True)
class Refused:
    """Why a prompt has no circuit to compare."""

    reason: str


def retrace(
    model: "Model", examples: Sequence[Example], settings: TraceSettings, *, bos: bool | None = None
) -> list[Circuit | Refused]:
    """The circuits of these examples, traced as `keyhole bulk` does, or why there is none.

    An example is refused if the model does not prefer the right answer to the wrong one (without a wrong one, to all
    others), or if its precision is too low for tracing.
    """
    circuits: list[Circuit | Refused] = []
    for start in range(0, len(examples), _TOGETHER):
        circuits += _traced(model, examples[start : start + _TOGETHER], settings, bos)
    return circuits


def _traced(
    model: "Model", examples: Sequence[Example], settings: TraceSettings, bos: bool | None
) -> list[Circuit | Refused]:
    """Some examples together; if one of them is refused, each alone."""
    try:
        runs = model.run_many([example.text for example in examples], bos=bos)
        ids = [answer_ids(model, example) for example in examples]
        said = [answered(*each) for each in zip(runs, examples, ids, strict=True)]
        right = [
            i
            for i, answer in enumerate(said)
            if (answer.correct if answer.difference is None else answer.difference > 0)
        ]
        if not right:
            return [Refused("the model answers otherwise") for _ in examples]
        contrasts = settings.metric in (None, "linear")
        traced = trace_many(
            [runs[i] for i in right],
            [list(ids[i].answers) for i in right],
            against=[list(ids[i].against) if contrasts and ids[i].against else None for i in right],
            settings=settings,
        )
        circuits = dict(zip(right, traced, strict=True))
        return [_kept(circuits.get(i)) for i in range(len(examples))]
    except KeyholeError as error:
        if len(examples) == 1:
            return [_refused(error)]
        return [circuit for example in examples for circuit in _traced(model, [example], settings, bos)]


def _kept(traced: Circuit | Untraced | None) -> Circuit | Refused:
    if traced is None:
        return Refused("the model answers otherwise")
    return _refused(traced.error) if isinstance(traced, Untraced) else traced


def _refused(error: KeyholeError) -> Refused:
    """What is wrong, without the numbers after the colon, which differ from prompt to prompt."""
    return Refused(str(error).partition(":")[0])
