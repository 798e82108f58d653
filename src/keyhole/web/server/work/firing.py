"""Why does a head attend here, or not? Channels as bars, both sides' signals, and what removal should do."""

from typing import Any

from keyhole.circuits.text import node_label
from keyhole.circuits.writer import Writer
from keyhole.models.numbers.precision import exact_matmul
from keyhole.qk.channels import channels
from keyhole.qk.omega import blocks
from keyhole.tracing.firings.firing import Firing
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.asked import explained


def firing(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """One firing, explained."""
    ran = kept.ran(body, told)
    told.check()
    found, note = explained(body, ran)
    body.done()
    told.check()
    return document(found, note)


def document(found: Firing, note: str | None = None) -> dict[str, Any]:
    """What the firing view is told: the firing, its row of attention, and its channels."""
    with exact_matmul():
        row = found.run.layer(found.layer).weights([found.head], [found.dest])[0, 0, : found.dest + 1].tolist()
    split = channels(found.run, (found.layer, found.head), found.dest, found.src)
    record = found.record()
    record["sides"] = [_side(side, found) for side in record["sides"]]
    fires = found.attention >= found.tau
    more = {"fires": fires, "note": note, "row": row, "channels": {**split.record(), "blocks": blocks(split.sigma)}}
    return {**record, **more}


def _side(side: dict[str, Any], found: Firing) -> dict[str, Any]:
    """With words for writers, and the weight that is predicted when one signal alone goes."""
    away = -1.0 if found.why == "here" else 1.0
    signals = [
        {
            **signal,
            "label": node_label(Writer(**signal["writer"]), found.run.tokens),
            "predicted": found.attention + away * signal["alone"],
        }
        for signal in side["signals"]
    ]
    return {**side, "signals": signals}
