"""What do signals mean, as far as anybody tested it? The names that the server was given, with their evidence."""

from dataclasses import asdict
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept


def naming(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Every name with its outcome, tests and examples; what passes, beside the controls."""
    from keyhole.figures.names import shares
    from keyhole.naming.scores import LEVEL

    body.done()
    found = kept.naming()
    if found is None:
        raise KeyholeError("there are no names: start keyhole explore with --names names.json.")
    told.check()
    signals = [{**asdict(one), "outcome": one.outcome()} for one in found.signals]
    groups = [{**asdict(one), "text": str(one)} for one in shares(found)]
    about = {"model": found.model, "explainer": found.explainer, "seed": found.seed, "level": LEVEL}
    return {**about, "shares": groups, "signals": signals}
