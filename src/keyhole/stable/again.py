"""Which circuits do prompts have when they are asked again, perhaps otherwise? What cannot be compared says why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.tasks.answers import answer_ids, answered
from keyhole.tasks.example import Example
from keyhole.tracing.batch import Untraced
from keyhole.tracing.trace import ManyOptions, trace_many

if TYPE_CHECKING:
    from keyhole.models.model import Model

_TOGETHER = 8


@dataclass(frozen=True)
class Refused:
    """Why a prompt has no circuit to compare."""

    reason: str


def retrace(
    model: "Model", examples: Sequence[Example], options: ManyOptions, *, bos: bool | None = None
) -> list[Circuit | Refused]:
    """The circuits of these examples, traced as `keyhole bulk` would; refused where the model is wrong, or too coarse.

    Wrong is a model that does not prefer the right answer to the wrong one, or, without one, to all others.
    """
    found: list[Circuit | Refused] = []
    for start in range(0, len(examples), _TOGETHER):
        found += _traced(model, examples[start : start + _TOGETHER], options, bos)
    return found


def _traced(
    model: "Model", examples: Sequence[Example], options: ManyOptions, bos: bool | None
) -> list[Circuit | Refused]:
    """Some together; where one is refused, each alone."""
    try:
        runs = model.run_many([example.text for example in examples], bos=bos)
        ids = [answer_ids(model, example) for example in examples]
        said = [answered(*asked) for asked in zip(runs, examples, ids, strict=True)]
        right = [i for i, one in enumerate(said) if (one.correct if one.difference is None else one.difference > 0)]
        if not right:
            return [Refused("the model answers otherwise") for _ in examples]
        held = options.get("seeds") in (None, "linear")
        made = trace_many(
            [runs[i] for i in right],
            [list(ids[i].answers) for i in right],
            against=[list(ids[i].against) if held and ids[i].against else None for i in right],
            **options,
        )
        own = dict(zip(right, made, strict=True))
        return [_kept(own.get(i)) for i in range(len(examples))]
    except KeyholeError as error:
        if len(examples) == 1:
            return [_refused(error)]
        return [one for example in examples for one in _traced(model, [example], options, bos)]


def _kept(found: Circuit | Untraced | None) -> Circuit | Refused:
    if found is None:
        return Refused("the model answers otherwise")
    return _refused(found.error) if isinstance(found, Untraced) else found


def _refused(error: KeyholeError) -> Refused:
    """What is wrong; the numbers that follow it differ from prompt to prompt."""
    return Refused(str(error).partition(":")[0])
