"""Where else does it fire? A head, a channel, an edge of a circuit or a signal of a firing, in the text at hand."""

from dataclasses import asdict
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.models.model import Model
from keyhole.models.organism import NAME as ORGANISM
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.signals import firing_subject, signal_subjects
from keyhole.naming.what import read_what
from keyhole.naming.where import where as find
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.asked import circuit_of, explained

TOKENS = 20_000  # that are read, unless more are asked for
MOST = 2_000_000


def where(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The strongest places, each with its text."""
    tokens, top = body.integer("tokens", TOKENS, least=100, most=MOST), body.integer("top", 12, least=1, most=200)
    length, seed = body.integer("length", 32, least=4, most=256), body.seed()
    model, sought = _sought(kept, body, told)
    body.done()
    progress = told.progress("Reading")
    found = find(model, sought, top=top, length=length, tokens=tokens, seed=seed, progress=progress)
    return {**asdict(found), "model": model.name}


def _sought(kept: Kept, body: Body, told: Told) -> tuple[Model, Subject | Head]:
    """What is sought, and in which model."""
    if "what" in body:
        what = body.text("what")
        if "#" in what:
            raise KeyholeError("edges of files are sought with `keyhole where`: here, give a circuit and an edge.")
        model = kept.model(body.text("model", ORGANISM), told)
        return model, read_what(model, what)
    if "circuit" in body:
        inner, number = body.inner("circuit"), body.integer("edge", least=0)
        circuit, model = circuit_of(kept, inner, told)
        inner.done()
        found = [one for one in signal_subjects(circuit, model) if one.about["edge"] == str(number)]
        if not found:
            raise KeyholeError(f"edge {number} is no signal into a head: choose a dest or src edge.")
        return model, found[0]
    ran = kept.ran(body, told)
    firing, _ = explained(body, ran)
    side, index = firing.side(body.choice("side", ("dest", "src"))), body.integer("signal", least=0)
    if index >= len(side.signals):
        raise KeyholeError(f"there is no signal {index}: this side has {len(side.signals)}, from 0.")
    return ran.run.model, firing_subject(firing, side.signals[index])
