"""What do two circuits share? Of two prompts, models or methods, or out of stores."""

from typing import Any

from keyhole.comparison.compare import compare as compare_both
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.asked import circuit_of
from keyhole.web.server.work.circuits import document


def compare(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Both circuits, and the library's comparison of them."""
    sides = []
    for name in ("a", "b"):
        inner = body.inner(name)
        sides.append(circuit_of(kept, inner, told))
        inner.done()
    members, threshold = body.integer("members", 0, least=0, most=200), body.number("threshold", 0.1)
    body.done()
    (a, model), (b, _) = sides
    found = compare_both(a, b, model=model, members=members, threshold=threshold, stage=told.stage)
    return {"a": document(a), "b": document(b), "comparison": found.record()}
