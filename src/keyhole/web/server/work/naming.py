"""What do signals mean, as far as anybody tested it? The names that the server was given, with their evidence."""

from dataclasses import asdict, replace
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.naming.judging.controls import RANDOM_PASS
from keyhole.naming.judging.scores import LEVEL, Share
from keyhole.naming.named import LANDMARKS, Named
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept


def naming(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Every name with its outcome, tests and examples; how many are right, beside the controls."""
    body.done()
    found = kept.naming()
    if found is None:
        raise KeyholeError("there are no names: start keyhole explore with --names names.json.")
    told.check()
    above = [replace(found.above_chance(), group="names"), *found.controls]
    shares = [_share(found.share(*one), "pass") for one in found.asked()]
    shares += [_share(one, "pass" if one.group == RANDOM_PASS else "above chance") for one in above]
    about = {"model": found.model, "explainer": found.explainer, "seed": found.seed, "level": LEVEL}
    return {**about, "landmarks": LANDMARKS, "shares": shares, "signals": [_signal(one) for one in found.signals]}


def _share(one: Share, counted: str) -> dict[str, Any]:
    return {**asdict(one), "counted": counted, "text": str(one)}


def _signal(one: Named) -> dict[str, Any]:
    """One name; each test with its own outcome."""
    tests = [{**asdict(test), "outcome": one.outcome(test.kind, test.of)} for test in one.tests]
    return {**asdict(one), "tests": tests, "outcome": one.outcome()}
