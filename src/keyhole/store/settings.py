"""Against which prompts is a prompt of many measured? Drawn as its task draws them, or others of the same file.

Prompts of a file are alike if they have the same template and as many tokens. Every prompt is held against the first of
these that the file has, itself left out, so that what is measured depends on the file alone.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import LEAST
from keyhole.models.model import Model
from keyhole.models.tokens import encode
from keyhole.settings.stores import MOST as MOST
from keyhole.settings.stores import BulkOptions as BulkOptions
from keyhole.settings.stores import BulkSettings as BulkSettings
from keyhole.settings.stores import Tracing as Tracing
from keyhole.settings.stores import Wrong as Wrong
from keyhole.tasks.catalogue import like
from keyhole.tasks.example import Example
from keyhole.tasks.variants import OTHERS

Alike = Mapping[tuple[str, int], tuple[Example, ...]]  # prompts by template and number of tokens


def drawn(examples: Sequence[Example]) -> bool:
    """Can prompts like these be drawn? Those of tasks can."""
    return all(example.task in OTHERS for example in examples)


def alike_in(model: Model, examples: Sequence[Example], bos: bool | None) -> Alike:
    """The prompts of a file by template and number of tokens, some of each; refused where none has enough others."""
    groups: dict[tuple[str, int], dict[str, Example]] = defaultdict(dict)
    for example in examples:
        with suppress(KeyholeError):  # what cannot be encoded fails in its turn
            group = groups[_kind(model, example, bos)]
            if len(group) <= MOST:
                group.setdefault(example.text, example)
    most = max((len(group) for group in groups.values()), default=0)
    if most <= LEAST:
        raise KeyholeError(
            f"effects are measured against prompts of the same template and with as many tokens, at least {LEAST} "
            f"others, and no more than {most} of these {len(examples)} prompts are alike: add prompts that differ in "
            "their words alone."
        )
    return {kind: tuple(group.values()) for kind, group in groups.items()}


def like_of(model: Model, example: Example, alike: Alike | None, bos: bool | None) -> list[Example]:
    """The prompts that one is measured against: drawn, or others of its file."""
    if alike is None:
        return like(example, model, MOST)
    others = [other for other in alike.get(_kind(model, example, bos), ()) if other.text != example.text][:MOST]
    if len(others) < LEAST:
        raise KeyholeError(
            f"only {len(others)} other prompts of the file have the template of {example.text!r} and as many tokens, "
            f"and {LEAST} are needed."
        )
    return others


def _kind(model: Model, example: Example, bos: bool | None) -> tuple[str, int]:
    return example.template, len(encode(model, example.text, bos).ids)
