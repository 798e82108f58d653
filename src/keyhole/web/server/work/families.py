"""Do a store's circuits come in families, and what drives its firings on the first token?"""

import base64
from typing import Any, get_args

from keyhole.family.columns import Granularity
from keyhole.family.families import RIGHT
from keyhole.family.families import families as find
from keyhole.family.record import Families
from keyhole.models.organism import NAME as ORGANISM
from keyhole.sink import sinks as study
from keyhole.sink import text as sink_text
from keyhole.sink.record import Sinks
from keyhole.store.chosen import label_columns
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.stores import conditions

LEAVES = 1000  # circuits of a tree that is drawn


def families(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The library's record, with the tree and distances for pictures."""
    store = kept.store(body.text("store"))
    asked = conditions(body)
    options = {
        "granularity": body.choice("granularity", get_args(Granularity), "channels"),
        "role": body.flag("role", False),
        "weighted": body.flag("weighted", False),
        "k": body.integer("k", None, least=2),
        "most": body.integer("most", LEAVES, least=10, most=20_000),
        "seed": body.seed(),
    }
    everything = body.flag("all", False)
    body.done()
    where = ({} if everything else dict(RIGHT)) | label_columns(store, asked)
    found = find(store, **options, where=where, progress=told.progress("Comparing circuits"))
    told.check()
    return {**found.record(), **_drawn(found)}


def _drawn(found: Families) -> dict[str, Any]:
    """The tree, its leaves and their distances, a byte each; not of very many."""
    family = dict(zip(found.prompts.tolist(), found.labels.tolist(), strict=True))
    sample = found.sample.tolist()
    told: dict[str, Any] = {"sample": sample, "labels": [family[one] for one in sample], "values": dict(found.values)}
    if len(sample) > LEAVES:
        return {**told, "tree": None, "distances": None}
    levels = (255 * found.distances.clip(0, 1)).round().astype("uint8")
    coded = base64.b64encode(levels.tobytes()).decode()
    return {**told, "tree": found.clustering.tree.tolist(), "distances": coded}


def sinks(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The library's record of a study of sinks."""
    store = kept.store(body.text("store"))
    prompts, draws = body.integer("prompts", 24, least=6, most=500), body.integer("draws", 99, least=19, most=999)
    controls, seed = body.integer("controls", 9, least=1, most=50), body.seed()
    body.done()
    model = kept.model(str(store.manifest.model.get("name", ORGANISM)), told)
    options = {"prompts": prompts, "draws": draws, "controls": controls, "seed": seed}
    found = study(store, model, **options, stage=told.stage)
    return {**found.record(), "told": _told(found)}


def _told(found: Sinks) -> dict[str, Any]:
    """What was found, in the library's own words and tables; a column of numbers begins with >."""
    sides = []
    for side in found.sides:
        tables = [sink_text.likeness_table(side)] if side.likeness else []
        tables += [sink_text.removal_table(side)] if side.removals else []
        told = [{"columns": columns, "rows": rows} for columns, rows in tables]
        sides.append({"side": side.side, "found": side.found, "lines": sink_text.head_lines(side), "tables": told})
    return {"opening": sink_text.opening(found), "sides": sides, "massive": sink_text.massive_lines(found)}
