"""Which kinds of work are there? Each calls one function of the library, and is loaded when first asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told, Work
from keyhole.web.server.kept import Kept
from keyhole.web.server.spelling import spell

Answer = Callable[[Kept, Body, Told], Any]


@dataclass(frozen=True)
class Kind:
    """One kind of work: where it is done, and whether it takes less than a few seconds on small models."""

    module: str
    function: str
    quick: bool = True

    def work(self, kept: Kept, values: dict[str, Any]) -> Work:
        """What the worker calls."""

        def call(told: Told) -> bytes:
            body = Body(values)
            function: Answer = getattr(import_module(f"keyhole.web.server.work.{self.module}"), self.function)
            return spell(function(kept, body, told))

        return call


KINDS = {
    "load": Kind("prompt", "load"),
    "run": Kind("prompt", "run"),
    "answers": Kind("prompt", "answers"),
    "heads": Kind("prompt", "heads"),
    "pattern": Kind("prompt", "pattern"),
    "firing": Kind("firing", "firing"),
    "intervene": Kind("removal", "intervene"),
    "mlp": Kind("mlp", "mlp"),
    "trace": Kind("circuits", "trace", quick=False),
    "story": Kind("circuits", "story", quick=False),
    "faithfulness": Kind("measuring", "faithfulness", quick=False),
    "effects": Kind("measuring", "effects", quick=False),
    "like": Kind("alike", "like"),
    "verify": Kind("circuits", "verify", quick=False),
    "names": Kind("circuits", "names"),
    "naming": Kind("naming", "naming"),
    "compare": Kind("comparing", "compare", quick=False),
    "where": Kind("corpus", "where", quick=False),
    "stores": Kind("stores", "stores"),
    "outcomes": Kind("stores", "outcomes"),
    "circuit": Kind("stores", "circuit"),
    "families": Kind("families", "families", quick=False),
    "sinks": Kind("families", "sinks", quick=False),
    "contrast": Kind("contrasts", "contrast", quick=False),
}
