"""How much of the answer does a circuit carry, and what does the answer lose without its parts?"""

from collections.abc import Sequence
from typing import Any, get_args

from keyhole.faithfulness.effects import What
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.asked import baseline_of, circuit_of


def faithfulness(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Kept, cut and rest of a circuit's edges, and the effects of tokens: a handful of passes."""
    return _measured(kept, body, told, ("words", "faithfulness"), "Measuring faithfulness")


def effects(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """All that can be measured of a circuit: a pass for each token, node and edge."""
    return _measured(kept, body, told, get_args(What), "Measuring effects")


def _measured(kept: Kept, body: Body, told: Told, what: Sequence[What], doing: str) -> dict[str, Any]:
    circuit, model = circuit_of(kept, body, told)
    stored = "store" in body
    prompt = kept.store(body.text("store"))[body.integer("index")].example.text if stored else body.take("prompt")
    options = baseline_of(kept, body, prompt, model)
    body.done()
    needed = None if circuit.run is not None else model
    measured = circuit.effects(needed, what=what, progress=told.progress(doing), **options).measured
    assert measured is not None
    return measured.record()
