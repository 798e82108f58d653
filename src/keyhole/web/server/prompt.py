"""What happened in a prompt, why does a head attend here, and why does an MLP write this?

What happened in a prompt? Models, tokens and predictions, heads at a glance, one head's pattern.
"""

import base64
from dataclasses import asdict
from typing import Any

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.records import Writer
from keyhole.circuits.text import node_label
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import remove_causes
from keyhole.intervene.removal import Metric
from keyhole.models.numbers import exact_matmul
from keyhole.models.organism import NAME as ORGANISM
from keyhole.models.run import Run
from keyhole.models.tokens import text_ids, token_id, token_texts
from keyhole.qk.channels import channels, check_head
from keyhole.qk.firings import find_firings, head_map
from keyhole.qk.omega import blocks
from keyhole.tracing.answers import Likeliest, choose_targets, targets_of, token_ids
from keyhole.tracing.exactness import Check, check_runs
from keyhole.tracing.firing import Firing
from keyhole.tracing.linear import answer_pushes
from keyhole.tracing.mlp_causes import MlpWrite
from keyhole.tracing.mlp_directions import read_along
from keyhole.tracing.upstream import Writes
from keyhole.web.server.asked import explained
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept, Ran

CHECKED = 256  # tokens up to which a run is checked unasked
ROWS = 128  # exact rows of a pattern
FIRINGS = 200  # that are listed
_PIECES = 8  # of a word that is several tokens, shown


def load(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """A model's facts, once it is loaded."""
    name = body.text("model", ORGANISM)
    body.done()
    model = kept.model(name, told)
    dims = asdict(model.dims)
    facts = {"family": model.hf.config.model_type, "layers": len(model.blocks), **dims}
    more = {"attention_layers": model.attention_layers, "fingerprint": model.fingerprint()}
    return {"id": name, "name": model.name, **facts, **more, "tokenizer": model.tokenizer is not None}


def run(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Tokens, the likeliest next ones, and how exactly the run is rebuilt."""
    ran, top = kept.ran(body, told), body.integer("top", 10, least=1, most=200)
    asked = body.integer("end", -1)
    checked = body.flag("check", None)
    body.done()
    told.check()
    own = ran.run
    end = own.position(asked, "end")
    told.progress("Checking the run")
    error = _error(ran) if checked or (checked is None and len(own) <= CHECKED) else {"error": None, "exact": None}
    return {
        "model": ran.model,
        "bos": own.bos,
        "token_ids": list(own.token_ids),
        "tokens": list(own.tokens),
        "end": end,
        "predictions": predictions(own, own.logits[end], top),
        **error,
        "layers": len(own.layers),
        "heads": own.model.dims.heads,
    }


def _error(ran: Ran) -> dict[str, Any]:
    def make() -> Check:
        with exact_matmul(), ran.run.model._steady():
            return check_runs(Writes([ran.run]))[0]

    check = ran.made.get("check", make)
    errors = [check.scores, check.residuals, check.logits, check.mlps]
    return {"error": max(e for e in errors if e is not None), "exact": check.exact}


def predictions(run: Run, logits: Float[Tensor, "vocab"], top: int) -> list[dict[str, Any]]:
    """The likeliest tokens."""
    return _as_answers(run, logits, targets_of(logits, None, min(top, len(logits))))


def answers(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Which tokens words or ids are, as answers; of a word that is several, which one to ask for instead."""
    ran, words, end = kept.ran(body, told), body.words("words"), body.integer("end", -1)
    body.done()
    logits = ran.run.logits[ran.run.position(end, "end")]
    ids = list[int]()
    for word in words or []:
        if pieces := _several(ran.run, word):
            instead = _as_answers(ran.run, logits, pieces[:1])[0]
            return {"tokens": [], "refused": _refusal(ran.run, word, pieces), "instead": instead}
        try:
            ids.append(token_id(ran.run.model, word, logits))
        except KeyholeError as error:
            return {"tokens": [], "refused": str(error), "instead": None}
    return {"tokens": _as_answers(ran.run, logits, ids), "refused": None, "instead": None}


def _refusal(run: Run, word: str | int, pieces: list[int]) -> str:
    texts = [repr(text) for text in token_texts(run.model.tokenizer, pieces[:_PIECES])]
    shown = " + ".join([*texts, *(["..."] if len(pieces) > _PIECES else [])])
    several = f"{word!r:.60} is {len(pieces)} tokens here, {shown}"
    return f"{several}, and the explorer asks for one token: for its first, {texts[0]} (`keyhole trace` takes all)."


def _several(run: Run, word: str | int) -> list[int]:
    """The tokens of a word that is more than one, after a space and without."""
    if isinstance(word, int) or run.model.tokenizer is None or not word.strip():
        return []
    try:
        forms = [text_ids(run.model, form) for form in (" " + word.strip(), word.strip())]
    except KeyholeError:
        return []  # a word that the tokenizer does not know: `token_id` says so
    return list(forms[0]) if min(map(len, forms)) > 1 else []


def _as_answers(run: Run, logits: Float[Tensor, "vocab"], ids: list[int]) -> list[dict[str, Any]]:
    likely = logits.double().softmax(-1)
    texts = token_texts(run.model.tokenizer, ids)
    told = zip(ids, texts, likely[ids].tolist(), logits[ids].tolist(), strict=True)
    return [{"id": i, "text": text, "probability": p, "logit": logit} for i, text, p, logit in told]


def heads(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Every head at a glance, and the firings most above uniform."""
    ran = kept.ran(body, told)
    body.done()
    told.check()
    found = ran.made.get("heads", lambda: head_map(ran.run, most=FIRINGS, progress=told.progress("Looking at heads")))
    return {
        "tokens": list(ran.run.tokens),
        "layers": ran.run.model.attention_layers,
        "heads": [asdict(one) for one in found.heads],
        "firings": [{**asdict(one), "times_uniform": one.times_uniform} for one in found.firings],
        "first": _first(ran),
    }


def _first(ran: Ran) -> dict[str, int] | None:
    """The firing to begin with: of those at the last token, the one that moves most towards the likeliest answer.

    By its head's write along the answer's logit against the mean of all tokens. None: nothing fires there, or the
    prompt is too long for work that nobody asked for.
    """
    if len(ran.run) > CHECKED:
        return None

    def make() -> dict[str, int] | None:
        sites = [site for site in find_firings(ran.run, dest=-1) if site.src > 0]
        pushes = answer_pushes(ran.run, len(ran.run) - 1)
        best = max(sites, key=lambda site: pushes[site.layer, site.head, site.src], default=None)
        return None if best is None else {name: getattr(best, name) for name in ("layer", "head", "dest", "src")}

    first: dict[str, int] | None = ran.made.get("first", make)
    return first


def pattern(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """All weights of one head, a byte each, and some rows exactly."""
    ran = kept.ran(body, told)
    layer, head = check_head(ran.run, (body.integer("layer"), body.integer("head")))
    n, record = len(ran.run), ran.run.attention_run(layer)
    asked = body.integers("dests", list(range(n)) if n <= ROWS else [n - 1])
    body.done()
    dests = [ran.run.position(dest, "dest") for dest in asked[:ROWS]]
    triangle, visible = bytearray(), list[int]()
    with exact_matmul():
        for block in record.blocks:
            told.check()
            visible += record.visible(block).sum(-1).tolist()  # of a window: fewer than there are tokens before
            levels = (255 * record.weights([head], block)[0]).round().clamp(0, 255).byte().cpu().numpy()
            for row, dest in zip(levels, block, strict=True):
                triangle += row[: dest + 1].tobytes()
        rows = record.weights([head], dests)[0].tolist() if dests else []
    exact = [row[: dest + 1] for row, dest in zip(rows, dests, strict=True)]
    coded = base64.b64encode(triangle).decode()
    found = {"layer": layer, "head": head, "n": n, "visible": visible}
    return {**found, "triangle": coded, "dests": dests, "weights": exact}


# Why does a head attend here, or not? Channels as bars, both sides' signals, and what removal should do.


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
        row = found.run.attention_run(found.layer).weights([found.head], [found.dest])[0, 0, : found.dest + 1].tolist()
    split = channels(found.run, (found.layer, found.head), found.dest, found.src)
    record = found.record()
    record["sides"] = [_side(side, found) for side in record["sides"]]
    fires = found.attention >= found.tau
    more = {"fires": fires, "note": note, "row": row, "channels": {**split.record(), "blocks": blocks(split.sigma)}}
    return {**record, **more}


def _side(side: dict[str, Any], found: Firing) -> dict[str, Any]:
    """With words for writers, and the weight that is predicted when one signal alone goes."""
    away = 1.0 if found.why_not else -1.0
    signals = [
        {
            **signal,
            "label": node_label(Writer(**signal["writer"]), found.run.tokens),
            "predicted": found.attention + away * signal["alone"],
        }
        for signal in side["signals"]
    ]
    return {**side, "signals": signals}


# Why does an MLP write this, for an answer or for a firing? Its causes and neurons, and what is left without them.


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
