"""Why does an MLP write this, for an answer or for a firing? Its causes and neurons, and what is left without them."""

from dataclasses import asdict
from typing import Any

from keyhole.circuits.text import node_label
from keyhole.circuits.writer import Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.mlp_causes import remove_causes
from keyhole.intervene.remove import Metric
from keyhole.models.tokens.prompts import token_texts
from keyhole.tracing.answers.targets import Likeliest, choose_targets, token_ids
from keyhole.tracing.mlps.directions import read_along
from keyhole.tracing.mlps.explain import MlpWrite
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept, Ran
from keyhole.web.server.work.asked import explained


def mlp(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """One MLP's write at a token: along what a firing reads, or along an answer's logit (the likeliest token's)."""
    ran = kept.ran(body, told)
    make = _read if "side" in body else _answering
    write, metric, toward = make(ran, body)
    told.check()
    removed = remove_causes(write, metric)
    record = write.record()
    for cause in record["causes"]:
        who = cause["writer"]
        cause["label"] = f"constant of mlp {write.layer}" if who is None else node_label(Writer(**who), ran.run.tokens)
    return {**record, "toward": toward, "removed": asdict(removed)}


def _answering(ran: Ran, body: Body) -> tuple[MlpWrite, Metric, str]:
    """Along an answer's logit."""
    own, layer = ran.run, body.integer("layer")
    pos, target, against = own.position(body.integer("pos", -1)), body.words("target"), body.words("against")
    body.done()
    right = choose_targets(own, target or Likeliest(1), pos)
    write = own.explain_mlp(layer, pos, own.toward(right, against, end=pos))
    words = ", ".join(repr(text.strip()) for text in token_texts(own.model.tokenizer, right))
    return write, Metric(pos, tuple(right), tuple(token_ids(own, against, pos))), f"the logit of {words}"


def _read(ran: Ran, body: Body) -> tuple[MlpWrite, Metric, str]:
    """Along the direction in which a firing reads one of its signals, which an MLP wrote."""
    own, (found, _) = ran.run, explained(body, ran)
    side, index, target = body.choice("side", ("dest", "src")), body.integer("signal", least=0), body.words("target")
    body.done()
    signals = found.side(side).signals
    if index >= len(signals) or signals[index].writer.kind != "mlp":
        raise KeyholeError(f"signal {index} of the {side} side was not written by an MLP.")
    signal, end = signals[index], len(own) - 1
    write = own.explain_mlp(signal.writer.layer, signal.writer.dest, read_along(found, signal))
    metric = Metric(end, tuple(choose_targets(own, target or Likeliest(1), end)))
    return write, metric, f"what head {found.layer}.{found.head} reads of it"
