"""Why does an MLP write towards an answer? Its causes and neurons, and what is left without them."""

from dataclasses import asdict
from typing import Any

from keyhole.circuits.text import node_label
from keyhole.circuits.writer import Writer
from keyhole.intervene.mlp_causes import remove_causes
from keyhole.intervene.remove import Metric
from keyhole.tracing.targets import Likeliest, choose_targets, token_ids
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept


def mlp(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """One MLP's write at a token, along an answer's logit (the likeliest token's, if none is named)."""
    ran = kept.ran(body)
    layer, asked = body.integer("layer"), body.integer("pos", -1)
    target, against = body.words("target"), body.words("against")
    body.done()
    told.check()
    own, pos = ran.run, ran.run.position(asked)
    right = choose_targets(own, target or Likeliest(1), pos)
    write = own.explain_mlp(layer, pos, own.toward(right, against, end=pos))
    told.check()
    removed = remove_causes(write, Metric(pos, tuple(right), tuple(token_ids(own, against))))
    record = write.record()
    for cause in record["causes"]:
        who = cause["writer"]
        cause["label"] = f"constant of mlp {layer}" if who is None else node_label(Writer(**who), own.tokens)
    return {**record, "removed": asdict(removed)}
