"""What happened in a prompt, why does a head attend here, and why does an MLP write this?"""

import base64
from dataclasses import asdict
from typing import Any, Literal

from jaxtyping import Float
from pydantic import Field
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
from keyhole.requests.bodies import Body, PromptBody, Words
from keyhole.requests.jobs import Reporter
from keyhole.requests.kept import Kept, Ran
from keyhole.tracing.answers import Likeliest, choose_targets, targets_of, token_ids
from keyhole.tracing.exactness import Check, check_runs
from keyhole.tracing.firing import Firing
from keyhole.tracing.linear import answer_pushes
from keyhole.tracing.mlp_causes import MlpWrite
from keyhole.tracing.mlp_directions import read_along
from keyhole.tracing.upstream import Writes
from keyhole.web.server.circuits import FiringBody, explained

CHECKED = 256  # tokens up to which a run is checked by default
ROWS = 128  # exact rows of a pattern
FIRINGS = 200  # that are listed
_PIECES = 8  # of a word that is several tokens, shown


# What happened in a prompt? Models, tokens and predictions, heads at a glance, one head's pattern.


class LoadBody(Body):
    """Which model."""

    model: str = ORGANISM


def load(kept: Kept, body: LoadBody, reporter: Reporter) -> dict[str, Any]:
    """A model's facts, once it is loaded."""
    model = kept.model(body.model, reporter)
    dims = asdict(model.dims)
    facts = {"family": model.hf.config.model_type, "layers": len(model.blocks), **dims}
    more = {"attention_layers": model.attention_layers, "fingerprint": model.fingerprint()}
    return {"id": body.model, "name": model.name, **facts, **more, "tokenizer": model.tokenizer is not None}


class RunBody(PromptBody):
    """A prompt, and what to say of its run."""

    top: int = Field(10, ge=1, le=200)  # likeliest tokens
    end: int = -1
    check: bool | None = None  # how exactly is it reconstructed? Default: only where that is quick


def run(kept: Kept, body: RunBody, reporter: Reporter) -> dict[str, Any]:
    """Tokens, the likeliest next ones, and how exactly the run is reconstructed."""
    ran = kept.ran(body, reporter)
    reporter.check()
    recorded = ran.run
    end = recorded.position(body.end, "end")
    reporter.progress("Checking the run")
    checked = len(recorded) <= CHECKED if body.check is None else body.check
    return {
        "model": ran.model,
        "bos": recorded.bos,
        "token_ids": list(recorded.token_ids),
        "tokens": list(recorded.tokens),
        "end": end,
        "predictions": predictions(recorded, recorded.logits[end], body.top),
        **(_error(ran) if checked else {"error": None, "exact": None}),
        "layers": len(recorded.layers),
        "heads": recorded.model.dims.heads,
        "chat": getattr(recorded.model.tokenizer, "chat_template", None) is not None,
    }


def _error(ran: Ran) -> dict[str, Any]:
    def make() -> Check:
        with exact_matmul(), ran.run.model._steady():
            return check_runs(Writes([ran.run]))[0]

    check = ran.results.get("check", make)
    errors = [check.scores, check.residuals, check.logits, check.mlps]
    return {"error": max(e for e in errors if e is not None), "exact": check.exact}


def predictions(run: Run, logits: Float[Tensor, "vocab"], top: int) -> list[dict[str, Any]]:
    """The likeliest tokens."""
    return _as_answers(run, logits, targets_of(logits, None, min(top, len(logits))))


class AnswersBody(PromptBody):
    """A prompt, and words that may be its answers."""

    words: Words = None
    end: int = -1


def answers(kept: Kept, body: AnswersBody, reporter: Reporter) -> dict[str, Any]:
    """Which tokens words or ids are, as answers; of a word that is several, which one to ask for instead."""
    ran = kept.ran(body, reporter)
    logits = ran.run.logits[ran.run.position(body.end, "end")]
    ids = list[int]()
    for word in body.words or []:
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
    columns = zip(ids, texts, likely[ids].tolist(), logits[ids].tolist(), strict=True)
    return [{"id": i, "text": text, "probability": p, "logit": logit} for i, text, p, logit in columns]


def heads(kept: Kept, body: PromptBody, reporter: Reporter) -> dict[str, Any]:
    """Every head at a glance, and the firings most above uniform."""
    ran = kept.ran(body, reporter)
    reporter.check()
    glance = ran.results.get(
        "heads", lambda: head_map(ran.run, most=FIRINGS, progress=reporter.progress("Looking at heads"))
    )
    return {
        "tokens": list(ran.run.tokens),
        "layers": ran.run.model.attention_layers,
        "heads": [asdict(head) for head in glance.heads],
        "firings": [{**asdict(site), "times_uniform": site.times_uniform} for site in glance.firings],
        "first": _first(ran),
    }


def _first(ran: Ran) -> dict[str, int] | None:
    """The firing to begin with: of those at the last token, the one that moves most towards the likeliest answer.

    By its head's write along the answer's logit against the mean of all tokens. None: nothing fires there, or the
    prompt is too long for work that the user did not request.
    """
    if len(ran.run) > CHECKED:
        return None

    def make() -> dict[str, int] | None:
        sites = [site for site in find_firings(ran.run, dest=-1) if site.src > 0]
        pushes = answer_pushes(ran.run, len(ran.run) - 1)
        best = max(sites, key=lambda site: pushes[site.layer, site.head, site.src], default=None)
        return None if best is None else {name: getattr(best, name) for name in ("layer", "head", "dest", "src")}

    first: dict[str, int] | None = ran.results.get("first", make)
    return first


class PatternBody(PromptBody):
    """A head, and the tokens whose weights are given exactly: all of a short prompt, else the last one."""

    layer: int
    head: int
    dests: list[int] | None = None


def pattern(kept: Kept, body: PatternBody, reporter: Reporter) -> dict[str, Any]:
    """All weights of one head, a byte each, and some rows exactly."""
    ran = kept.ran(body, reporter)
    layer, head = check_head(ran.run, (body.layer, body.head))
    n, record = len(ran.run), ran.run.attention_run(layer)
    usual = list(range(n)) if n <= ROWS else [n - 1]
    rows_at = usual if body.dests is None else body.dests[:ROWS]
    dests = [ran.run.position(dest, "dest") for dest in rows_at]
    triangle, visible = bytearray(), list[int]()
    with exact_matmul():
        for block in record.blocks:
            reporter.check()
            visible += record.visible(block).sum(-1).tolist()  # of a window: fewer than there are tokens before
            levels = (255 * record.weights([head], block)[0]).round().clamp(0, 255).byte().cpu().numpy()
            for row, dest in zip(levels, block, strict=True):
                triangle += row[: dest + 1].tobytes()
        rows = record.weights([head], dests)[0].tolist() if dests else []
    exact = [row[: dest + 1] for row, dest in zip(rows, dests, strict=True)]
    coded = base64.b64encode(triangle).decode()
    which = {"layer": layer, "head": head, "n": n, "visible": visible}
    return {**which, "triangle": coded, "dests": dests, "weights": exact}


# Why does a head attend here, or not? Channels as bars, both sides' signals, and what removal should do.


def firing(kept: Kept, body: FiringBody, reporter: Reporter) -> dict[str, Any]:
    """One firing, explained."""
    ran = kept.ran(body, reporter)
    reporter.check()
    explanation, note = explained(body, ran)
    reporter.check()
    return document(explanation, note)


def document(firing: Firing, note: str | None = None) -> dict[str, Any]:
    """What the firing view shows: the firing, its row of attention, and its channels."""
    with exact_matmul():
        row = firing.run.attention_run(firing.layer).weights([firing.head], [firing.dest])[0, 0]
    split = channels(firing.run, (firing.layer, firing.head), firing.dest, firing.src)
    record = firing.record()
    return {
        **record,
        "sides": [_side(side, firing) for side in record["sides"]],
        "fires": firing.attention >= firing.tau,
        "note": note,
        "row": row[: firing.dest + 1].tolist(),
        "channels": {**split.record(), "blocks": blocks(split.sigma)},
    }


def _side(side: dict[str, Any], firing: Firing) -> dict[str, Any]:
    """A side with labels of its writers, and the weight that is predicted when one signal alone is removed."""
    away = 1.0 if firing.why_not else -1.0  # a signal of "why not" keeps the head from attending
    signals = [
        {
            **signal,
            "label": node_label(Writer(**signal["writer"]), firing.run.tokens),
            "predicted": firing.attention + away * signal["alone"],
        }
        for signal in side["signals"]
    ]
    return {**side, "signals": signals}


# Why does an MLP write this, for an answer or for a firing? Its causes and neurons, and what is left without them.


class ReadBody(FiringBody):
    """An MLP's write, as a firing reads it through one of its signals."""

    FORM = "side"

    side: Literal["dest", "src"]
    signal: int = Field(ge=0)
    target: Words = None


class AnsweringBody(PromptBody):
    """An MLP's write, along an answer's logit."""

    layer: int
    pos: int = -1
    target: Words = None
    against: Words = None


def mlp(kept: Kept, body: ReadBody | AnsweringBody, reporter: Reporter) -> dict[str, Any]:
    """One MLP's write at a token: along what a firing reads, or along an answer's logit (the likeliest token's)."""
    ran = kept.ran(body, reporter)
    write, metric, toward = _read(ran, body) if isinstance(body, ReadBody) else _answering(ran, body)
    reporter.check()
    removed = remove_causes(write, metric)
    record = write.record()
    for cause in record["causes"]:
        who = cause["writer"]
        cause["label"] = f"constant of mlp {write.layer}" if who is None else node_label(Writer(**who), ran.run.tokens)
    return {**record, "toward": toward, "removed": asdict(removed)}


def _answering(ran: Ran, body: AnsweringBody) -> tuple[MlpWrite, Metric, str]:
    """Along an answer's logit."""
    run = ran.run
    pos = run.position(body.pos)
    targets = choose_targets(run, body.target or Likeliest(1), pos)
    write = run.explain_mlp(body.layer, pos, run.toward(targets, body.against, end=pos))
    words = ", ".join(repr(text.strip()) for text in token_texts(run.model.tokenizer, targets))
    return write, Metric(pos, tuple(targets), tuple(token_ids(run, body.against, pos))), f"the logit of {words}"


def _read(ran: Ran, body: ReadBody) -> tuple[MlpWrite, Metric, str]:
    """Along the direction in which a firing reads one of its signals, which an MLP wrote."""
    firing, _ = explained(body, ran)
    signals = firing.side(body.side).signals
    if body.signal >= len(signals) or signals[body.signal].writer.kind != "mlp":
        raise KeyholeError(f"signal {body.signal} of the {body.side} side was not written by an MLP.")
    signal, end = signals[body.signal], len(ran.run) - 1
    write = ran.run.explain_mlp(signal.writer.layer, signal.writer.dest, read_along(firing, signal))
    metric = Metric(end, tuple(choose_targets(ran.run, body.target or Likeliest(1), end)))
    return write, metric, f"what head {firing.layer}.{firing.head} reads of it"
