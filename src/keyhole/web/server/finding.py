"""Where else does it fire, what do signals mean, and what happens when they go?

Which heads tell a built-in contrast's keys apart? A study, with the places of queries and keys for pictures.
"""

from dataclasses import asdict, replace
from typing import Any, get_args

import torch

from keyhole.brief import Head, head_name
from keyhole.circuits.records import Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.features.contrast import report
from keyhole.features.contrast.clouds import joint_pca
from keyhole.features.contrast.lists import BoxFeature, BuiltIn, built_in
from keyhole.features.contrast.studies import Selection, Study, StudySettings, study
from keyhole.features.contrast.study_figures import coordinates
from keyhole.intervene.removal import AGREES, Cut, CutMode, Metric, Outcome, random_cut
from keyhole.intervene.removal import intervene as make
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul
from keyhole.models.organism import NAME as ORGANISM
from keyhole.naming.corpus.gather import where as find
from keyhole.naming.judge.judge import LEVEL, RANDOM_PASS, Share
from keyhole.naming.record import LANDMARKS, Named
from keyhole.naming.subjects.kinds import firing_subject, signal_subjects
from keyhole.naming.subjects.operands import read_what
from keyhole.naming.subjects.subject import Subject
from keyhole.tracing.answers import Likeliest, choose_targets
from keyhole.tracing.firing import Firing, Side
from keyhole.web.server.asked import circuit_of, explained
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.prompt import predictions

HEADS = 6  # whose queries and keys are placed
POINTS = 1000


def contrast(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The library's record of the study, and the first components of queries and keys of the selected heads."""
    model = kept.model(body.text("model", ORGANISM), told)
    what, feature = body.choice("what", get_args(BuiltIn)), body.choice("feature", get_args(BoxFeature), "both")
    sizes = (body.integer("prompts", 60, least=1, most=2000), body.integer("tests", 30, least=8, most=2000))
    answers, draws = body.integer("answers", 8, least=0, most=200), body.integer("draws", 10, least=1, most=100)
    permutations, seed = body.integer("permutations", 99, least=19, most=999), body.seed()
    boxes, wording = body.integer("boxes", 9, least=2, most=20), body.choice("wording", ("plain", "instruct"), "plain")
    chat = body.flag("chat", False)
    body.done()
    told.check()
    how: dict[str, Any] = {"wording": wording, "chat": chat} | ({"n_boxes": boxes} if what == "boxes" else {})
    fits, test = built_in(model, what, sizes, feature=feature, seed=seed, how=how)
    select = Selection("ratio", 0.1, top=3) if what == "lists" else Selection("accuracy", 0.3)
    settings = StudySettings(select, permutations=permutations, draws=draws, answers=answers, seed=seed)
    found = study(model, fits, test, settings=settings, stage=told.stage)
    told.check()
    return {**report.record(found), "summary": report.summary(found), "clouds": _clouds(found)}


def _clouds(found: Study) -> dict[str, Any]:
    """Queries and keys of each selected head in their joint principal components, with labels; some may have none."""
    clouds: dict[str, Any] = {}
    for head in found.selected[:HEADS]:
        for name, features in found.features.items():
            try:
                q, keys, labels = coordinates(found, name, head, max(3, features.rank(head, found.settings.rank)))
                pca = joint_pca(q, keys)
            except KeyholeError as error:
                clouds.setdefault(head_name(head), {})[name] = {"error": str(error)}
                continue
            own = {"shares": pca.shares, "queries": pca.queries[:POINTS], "keys": pca.keys[:POINTS]}
            clouds.setdefault(head_name(head), {})[name] = {**own, "labels": labels[:POINTS]}
    return clouds


# Where else does it fire? A head, a channel, an edge of a circuit or a signal of a firing, in the text at hand.

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
        found = [one for one in signal_subjects(circuit, model) if one.about["edge"] == number]
        if not found:
            raise KeyholeError(f"edge {number} is no signal into a head: choose a dest or src edge.")
        return model, found[0]
    ran = kept.ran(body, told)
    firing, _ = explained(body, ran)
    side, index = firing.side(body.choice("side", ("dest", "src"))), body.integer("signal", least=0)
    if index >= len(side.signals):
        raise KeyholeError(f"there is no signal {index}: this side has {len(side.signals)}, from 0.")
    return ran.run.model, firing_subject(firing, side.signals[index])


# What do signals mean, as far as anybody tested it? The names that the server was given, with their evidence.


def naming(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Every name with its outcome, tests and examples; how many are right, beside the controls."""
    body.done()
    found = kept.naming()
    if found is None:
        raise KeyholeError("there are no names: start keyhole explore with --names names.json.")
    told.check()
    above = [replace(found.above_chance(), group="names"), *found.controls]
    shares = [_share(found.share(*one), "pass") for one in found.question_kinds()]
    shares += [_share(one, "pass" if one.group == RANDOM_PASS else "above chance") for one in above]
    about = {"model": found.model, "explainer": found.explainer, "seed": found.seed, "level": LEVEL}
    return {**about, "landmarks": LANDMARKS, "shares": shares, "signals": [_signal(one) for one in found.signals]}


def _share(one: Share, counted: str) -> dict[str, Any]:
    return {**asdict(one), "counted": counted, "text": str(one)}


def _signal(one: Named) -> dict[str, Any]:
    """One name; each test with its own outcome."""
    tests = [{**asdict(test), "outcome": one.outcome(test.kind, test.of)} for test in one.tests]
    return {**asdict(one), "tests": tests, "outcome": one.outcome()}


# What happens when signals go, double, or others go in their place? In the model's own pass, beside the prediction.

TOP = 10  # answers that are told


def intervene(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Remove or boost signals of one side, or as many random channels of the same writers."""
    ran = kept.ran(body, told)
    found, _ = explained(body, ran)
    action = body.choice("action", ("remove", "boost", "random"), "remove")
    mode, draws = body.choice("mode", get_args(CutMode), "exact"), body.integer("draws", 5, least=0, most=50)
    seed, target = body.seed(), body.words("target")
    side = body.choice("side", ("dest", "src"))
    chosen, only = body.integers("signals", None), body.integers("channels", None)
    keys = body.text("keys", "all")
    body.done()
    signals = _signals(found.side(side), chosen, only)
    cut = Cut(found.layer, found.head, found.dest, found.src, signals, keys)
    generator = torch.Generator().manual_seed(seed)
    randoms = [random_cut(ran.run, cut, generator) for _ in range(max(draws, 1) if action == "random" else draws)]
    end = len(ran.run) - 1
    metric = Metric(end, tuple(choose_targets(ran.run, target or Likeliest(1), end)))
    cuts = randoms if action == "random" else [cut, *randoms]
    progress = told.progress("Running the model")
    outcomes = make(ran.run, cuts, metric, mode=mode, boost=action == "boost", keep=True, progress=progress)
    first, controls = outcomes[0], outcomes if action == "random" else outcomes[1:]
    agrees = None if mode == "global" else abs(first.after - first.predicted) <= AGREES
    return {
        "action": action,
        "mode": mode,
        "side": side,
        "signals": chosen,
        "agrees": agrees,
        **{name: getattr(first, name) for name in ("before", "after", "predicted", "metric_before", "metric_after")},
        "norm_ratio": first.norm_ratio,
        "cosine": first.cosine,
        **_shown(found, first, end),
        "controls": [{name: getattr(one, name) for name in ("after", "predicted", "metric_after")} for one in controls],
    }


def _shown(found: Firing, first: Outcome, end: int) -> dict[str, Any]:
    """The row of attention and the answers, before and after."""
    run = found.run
    assert first.row is not None and first.logits is not None
    with exact_matmul():
        row = run.attention_run(found.layer).weights([found.head], [found.dest])[0, 0]
    return {
        "row_before": row[: found.dest + 1].tolist(),
        "row_after": first.row[: found.dest + 1].tolist(),
        "answers_before": predictions(run, run.logits[end], TOP),
        "answers_after": predictions(run, first.logits, TOP),
    }


def _signals(side: Side, chosen: list[int] | None, only: list[int] | None) -> tuple[Signal, ...]:
    """The signals that are asked for; None: everything that the search took away on this side."""
    channels: dict[Writer, list[int]] = {}
    if chosen is None:
        for removal in side.removed:
            channels.setdefault(removal.writer, []).append(removal.channel)
    else:
        for index in chosen:
            if not 0 <= index < len(side.signals):
                raise KeyholeError(f"there is no signal {index}: this side has {len(side.signals)}, from 0.")
            channels[side.signals[index].writer] = list(side.signals[index].channels)
    if only is not None:
        channels = {who: [k for k in own if k in only] for who, own in channels.items()}
    signals = tuple(Signal(who, side.side, tuple(own)) for who, own in channels.items() if own)
    if not signals:
        raise KeyholeError("nothing is left to take away: choose a signal of this side, and channels that it uses.")
    return signals
