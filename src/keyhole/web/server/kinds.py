"""Which kinds of work are there? Each calls one function of the library.

Its module is imported when first needed, so that the server listens before torch is loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args, get_type_hints

from keyhole.requests.bodies import Body, read_body, spell
from keyhole.requests.jobs import Reporter, Work
from keyhole.requests.kept import Kept


@dataclass(frozen=True)
class Kind:
    """One kind of work: where it is done, and whether it takes less than a few seconds on small models."""

    module: str
    function: str
    quick: bool = True

    def work(self, kept: Kept, values: dict[str, Any]) -> Work:
        """What the worker calls."""

        def call(reporter: Reporter) -> bytes:
            answer = getattr(import_module(f"keyhole.web.server.{self.module}"), self.function)
            kind = _form(get_type_hints(answer)["body"], values)
            return spell(answer(kept, read_body(kind, values), reporter))

        return call


def _form(hint: Any, values: Mapping[str, Any]) -> type[Body]:
    """The body that a function takes; of several forms, the first whose field the request has, else the last."""
    forms: Sequence[type[Body]] = get_args(hint) or (hint,)
    return next((form for form in forms if values.get(form.FORM) is not None), forms[-1])


KINDS = {
    "load": Kind("prompt", "load"),
    "run": Kind("prompt", "run"),
    "answers": Kind("prompt", "answers"),
    "heads": Kind("prompt", "heads"),
    "pattern": Kind("prompt", "pattern"),
    "firing": Kind("prompt", "firing"),
    "intervene": Kind("finding", "intervene"),
    "mlp": Kind("prompt", "mlp"),
    "generate": Kind("writing", "generate", quick=False),
    "edit": Kind("writing", "edit"),
    "beside": Kind("writing", "beside", quick=False),
    "trace": Kind("stores", "trace", quick=False),
    "story": Kind("stores", "story", quick=False),
    "faithfulness": Kind("circuits", "faithfulness", quick=False),
    "effects": Kind("circuits", "effects", quick=False),
    "like": Kind("circuits", "like"),
    "verify": Kind("stores", "verify", quick=False),
    "names": Kind("stores", "names"),
    "naming": Kind("finding", "naming"),
    "compare": Kind("stores", "compare", quick=False),
    "where": Kind("finding", "where", quick=False),
    "stores": Kind("stores", "stores"),
    "outcomes": Kind("stores", "outcomes"),
    "circuit": Kind("stores", "circuit"),
    "families": Kind("stores", "families", quick=False),
    "sinks": Kind("stores", "sinks", quick=False),
    "contrast": Kind("finding", "contrast", quick=False),
}
