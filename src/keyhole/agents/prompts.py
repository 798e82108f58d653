"""Tools that look at a model and a prompt: check, heads, channels, explain, explain_mlp, generate."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from keyhole.agents.bodies import Answer, HeadBody, ModelBody, Place, RunBody, Several, TargetBody, as_list
from keyhole.agents.offered import Offered
from keyhole.edits.files import edit_of, load_edits, typed_edit
from keyhole.edits.records import Edit
from keyhole.errors import KeyholeError
from keyhole.generation.comparing import beside
from keyhole.generation.writing import generate as write_on
from keyhole.intervene.cuts import remove_causes
from keyhole.intervene.removal import Metric
from keyhole.models.run import Run
from keyhole.models.tokens import token_label
from keyhole.qk.channels import Channels
from keyhole.qk.channels import channels as split_score
from keyhole.qk.controls import RotationControl, RotationSettings, rotation_control
from keyhole.qk.firings import find_firings
from keyhole.report import Table
from keyhole.report.terminal import as_text
from keyhole.requests.bodies import Seed, takes
from keyhole.requests.jobs import Reporter
from keyhole.settings.measuring import GenerateSettings
from keyhole.settings.tracing import FirstToken, TraceSettings
from keyhole.tracing.answers import Likeliest, choose_targets, token_ids
from keyhole.tracing.exactness import check as check_model
from keyhole.tracing.why import explain as explain_firing

_EDITS = 64  # at once


class CheckBody(ModelBody):
    """A model, and on what it is checked."""

    prompt: str | list[int] | None = Field(None, description="Prompt to check on. Default: random tokens.")
    tolerance: float | None = Field(
        None, gt=0, description="Largest relative error that is accepted. Default: by the number format."
    )
    seed: Seed = Field(0, description="Seed of the random tokens.")


def check(offered: Offered, body: CheckBody, reporter: Reporter) -> Answer:
    """How exact is Keyhole on this model?

    Rebuilds attention scores, residual streams and logits, and compares each with the model's own.
    """
    if body.prompt is None:
        model, prompt = offered.model(body.model, reporter), None
    else:
        model, ids = offered.encoded(RunBody.model_validate({"prompt": body.prompt, "model": body.model}), reporter)
        prompt = list(ids)
    reporter.progress("Checking")
    result = check_model(model, prompt, tolerance=body.tolerance, seed=body.seed)
    return Answer(str(result), result.record())


class HeadsBody(RunBody):
    """A prompt, and which of its firings are shown."""

    dest: Place | None = Field(
        None, description="Show only firings of this attending token: a position or its text. Default: all tokens."
    )
    tau: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Attention weight from which a head counts as firing. Default: 2.5 / visible keys.",
    )
    top: int = Field(20, ge=1, le=500, description="How many firings are shown.")
    first_token: FirstToken = Field(
        "collapse", description="Firings on the first token are listed (keep, mark), or only counted (collapse)."
    )


def heads(offered: Offered, body: HeadsBody, reporter: Reporter) -> Answer:
    """Which heads fire where, and which channels carry each score?

    The firings most above uniform attention come first; look into one with channels or explain.
    """
    run = offered.ran(body, reporter).run
    reporter.check()
    sites = find_firings(run, body.tau, dest=body.dest)
    listed = [site for site in sites if body.first_token != "collapse" or site.src > 0]
    progress, splits = reporter.progress("Splitting scores"), list[Channels]()
    for site in listed[: body.top]:
        progress(len(splits), min(body.top, len(listed)))
        splits.append(split_score(run, (site.layer, site.head), site.dest, site.src))
    rows = [
        (
            f"{split.layer}.{split.head}",
            token_label(run.tokens, split.dest),
            token_label(run.tokens, split.src),
            f"{split.attention:.3f}",
            f"{split.attention * split.visible:.1f}",
            f"{split.sparsity:.3f}",
            " ".join(f"{k}:{share:.0%}" for k, share in split.strongest()) or "-",
        )
        for split in splits
    ]
    hidden = len(sites) - len(listed)
    collapsed = f"; {hidden} on the first token are only counted (first_token: keep lists them)" if hidden else ""
    return Answer.of(
        "Which heads fire where?",
        f"{_tokens(run)}\n\n{len(splits)} of {len(sites)} firings shown{collapsed}. x unif.: weight x visible keys. "
        "S(v): how sparse the split over channels is, 1 / channels to 1.",
        ("Firings", Table(("head", "dest", "src", ">weight", ">x unif.", ">S(v)", "channels: share"), rows)),
        {
            **_about(run),
            "firings": len(sites),
            "shown": [split.record() | {"times_uniform": split.attention * split.visible} for split in splits],
        },
    )


@takes(RotationSettings, "basis")
class ChannelsBody(HeadBody):
    """A firing, and how its score is split."""

    draws: int = Field(20, ge=1, le=1000, description="How many random rotations it is compared with, of each kind.")
    seed: Seed = Field(0, description="Seed of the rotations.")
    top: int = Field(12, ge=1, description="How many channels are shown.")


def channels(offered: Offered, body: ChannelsBody, reporter: Reporter) -> Answer:
    """How does one attention score split over the singular channels of its head?

    It is compared with random rotations: a split that is as sparse in them says nothing about the channels.
    """
    run, settings = offered.ran(body, reporter).run, body.settings(RotationSettings)
    reporter.check()
    where: Any = (body.which, body.dest, body.src)
    split, controls = split_score(run, *where, basis=settings.basis), list[RotationControl]()
    for kind in ("refactor", "ambient"):
        reporter.progress(f"Rotating: {kind}")(0, 1)
        how: Any = {"kind": kind, "draws": settings.draws, "seed": settings.seed, "basis": settings.basis}
        controls.append(rotation_control(run, *where, **how))
    drawn = {c.kind: {"mean": c.mean_rotated, "draws": list(c.rotated)} for c in controls}
    text = as_text(split.report(run.tokens, controls, body.top))
    return Answer(text, {**_about(run), **split.record(), "controls": drawn})


@takes(TraceSettings, "tau", "keys")
class ExplainBody(HeadBody):
    """A firing, and how it is explained."""

    why: Literal["here", "not"] = Field(
        "here", description="Explain why the head attends to src (here), or what keeps it from that (not)."
    )


def explain(offered: Offered, body: ExplainBody, reporter: Reporter) -> Answer:
    """Which signals cause one attention weight?

    Finds the fewest (writer, channel) pairs, on the dest side and on the src side, whose removal takes the weight below
    tau; each with what it is worth in the order of removal, and alone.
    """
    run, settings = offered.ran(body, reporter).run, body.settings(TraceSettings)
    reporter.progress("Searching")
    reporter.check()
    firing = explain_firing(
        run, body.which, body.dest, body.src, tau=settings.tau, keys=settings.keys, why_not=body.why == "not"
    )
    return Answer(str(firing), firing.record())


class MlpBody(TargetBody):
    """An MLP at a token, and the answer towards which its write is split."""

    layer: int = Field(ge=0, description="The MLP's layer.")
    pos: Place = Field(-1, description="Token at which the MLP writes: a position (-1: the last) or its text.")


def explain_mlp(offered: Offered, body: MlpBody, reporter: Reporter) -> Answer:
    """Why does an MLP write towards an answer?

    Splits what it writes along the answer's logit over the writers of its input, exactly; then removes its causes in
    the model's own pass, compared with other writers as large.
    """
    run = offered.ran(body, reporter).run
    pos = run.position(body.pos, "pos")
    reporter.progress("Splitting what it writes")
    targets = choose_targets(run, body.target or Likeliest(1), pos)
    write = run.explain_mlp(body.layer, pos, run.toward(targets, body.against, end=pos))
    reporter.check()
    removed = remove_causes(write, Metric(pos, tuple(targets), tuple(token_ids(run, body.against, pos))))
    return Answer(f"{write}\n  {removed}", {**write.record(), "removed": asdict(removed)})


@takes(GenerateSettings, "max_new_tokens", "temperature", "top_p", "top_k", "seed")
class GenerateBody(RunBody):
    """A prompt, how the model writes on, and what is edited."""

    stop: Several = Field([], description="End where one of these texts is written. Default: nowhere.")
    edits: Annotated[list[str | dict[str, Any]], BeforeValidator(as_list)] = Field(
        [],
        max_length=_EDITS,
        description="Write a second answer with these edits, and compare. Each is a text, 3.6:0,2*0 (channels 0 and 2 "
        "of head 3.6 times 0), 3.6*0 (all that the head writes), mlp2*0 (an MLP); a .json file of edits in the "
        "server's folder; or an edit as such a file has it.",
    )
    controls: int = Field(
        2, ge=0, le=20, description="With edits: how many edits of random channels, or heads, to compare with."
    )


def generate(offered: Offered, body: GenerateBody, reporter: Reporter) -> Answer:
    """What would the model write after this prompt, and what with some channels, heads or MLPs edited?

    With edits there are both answers, side by side, compared with edits of the same size elsewhere.
    """
    model, ids = offered.encoded(body, reporter)
    settings, most = body.settings(GenerateSettings), offered.settings.tokens
    if len(ids) + settings.max_new_tokens > most:
        raise KeyholeError(
            f"the prompt has {len(ids):,} tokens and its answer up to {settings.max_new_tokens:,}, and this server "
            f"takes {most:,} together: give a shorter prompt, or ask for fewer tokens."
        )
    edits = [edit for item in body.edits for edit in _edits(offered, item)]
    if edits:
        # Nobody is let in meanwhile: the model is edited.
        progress = reporter.progress("Writing the answers", alone=True)
        both = beside(model, list(ids), edits, controls=body.controls, settings=settings, progress=progress)
        return Answer(str(both), both.record())
    progress = reporter.progress("Writing", alone=True)
    answer = write_on(
        model, list(ids), settings=settings, show=lambda piece: progress(piece.index + 1, settings.max_new_tokens)
    )
    rows = [(str(i), repr(token.text), token.probability) for i, token in enumerate(answer.tokens)]
    tokens = Table((">at", "token", ">probability"), rows)
    return Answer.of(answer.text, f"{len(answer)} tokens; {answer.reason}", ("Tokens", tokens), answer.record())


def _edits(offered: Offered, item: str | dict[str, Any]) -> tuple[Edit, ...]:
    if isinstance(item, dict):
        return (edit_of(item),)
    if item.lower().endswith(".json"):
        return load_edits(offered.folder.existing(item, (".json",)))
    return (typed_edit(item),)


def _about(run: Run) -> dict[str, Any]:
    return {"model": run.model.name, "bos": run.bos, "token_ids": list(run.token_ids), "tokens": list(run.tokens)}


def _tokens(run: Run) -> str:
    return " ".join(f"{t}:{token.strip()}" for t, token in enumerate(run.tokens))
