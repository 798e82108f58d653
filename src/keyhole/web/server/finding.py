"""Which heads tell keys apart, where else does a signal fire, what does it mean, and what happens without it?"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import torch
from pydantic import Field

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
from keyhole.requests.bodies import Body, Seed, Words
from keyhole.requests.jobs import Reporter
from keyhole.requests.kept import NO_NAMES, Kept
from keyhole.settings.stores import WhereSettings
from keyhole.settings.tracing import TraceSettings
from keyhole.tracing.answers import Likeliest, choose_targets
from keyhole.tracing.firing import Firing, Side
from keyhole.web.server.circuits import CircuitBody, FiringBody, circuit_of, explained
from keyhole.web.server.prompt import predictions

# Which heads tell a built-in contrast's keys apart? A study, with the places of queries and keys for pictures.

HEADS = 6  # whose queries and keys are placed
POINTS = 1000  # that are drawn of each


class ContrastBody(Body):
    """A built-in contrast, and how much of it is studied: less than the library's defaults, as somebody waits."""

    what: BuiltIn
    model: str = ORGANISM
    feature: BoxFeature = "both"
    prompts: int = Field(60, ge=1, le=2000)
    tests: int = Field(30, ge=8, le=2000)
    answers: int = Field(8, ge=0, le=200)
    draws: int = Field(10, ge=1, le=100)
    permutations: int = Field(99, ge=19, le=999)
    seed: Seed = 0
    boxes: int = Field(9, ge=2, le=20)
    wording: Literal["plain", "instruct"] = "plain"
    chat: bool = False


def contrast(kept: Kept, body: ContrastBody, reporter: Reporter) -> dict[str, Any]:
    """The library's record of the study, and the first components of queries and keys of the selected heads."""
    model = kept.model(body.model, reporter)
    reporter.check()
    how: dict[str, Any] = {"wording": body.wording, "chat": body.chat}
    if body.what == "boxes":
        how["n_boxes"] = body.boxes
    fits, test = built_in(model, body.what, (body.prompts, body.tests), feature=body.feature, seed=body.seed, how=how)
    select = Selection("ratio", 0.1, top=3) if body.what == "lists" else Selection("accuracy", 0.3)
    settings = replace(body.settings(StudySettings), select=select)
    result = study(model, fits, test, settings=settings, stage=reporter.stage)
    reporter.check()
    return {**report.record(result), "summary": report.summary(result), "clouds": _clouds(result)}


def _clouds(result: Study) -> dict[str, Any]:
    """Queries and keys of each selected head in their joint principal components, with labels; some may have none."""
    clouds: dict[str, Any] = {}
    for head in result.selected[:HEADS]:
        of_head = clouds.setdefault(head_name(head), {})
        for name, features in result.features.items():
            try:
                q, keys, labels = coordinates(result, name, head, max(3, features.rank(head, result.settings.rank)))
                pca = joint_pca(q, keys)
            except KeyholeError as error:
                of_head[name] = {"error": str(error)}
                continue
            points = {"queries": pca.queries[:POINTS], "keys": pca.keys[:POINTS], "labels": labels[:POINTS]}
            of_head[name] = {"shares": pca.shares, **points}
    return clouds


# Where else does it fire? A head, a channel, an edge of a circuit or a signal of a firing, in the text at hand.

TOKENS = 20_000  # that are read, unless a request says more
MOST = 2_000_000


class CorpusBody(Body):
    """How much text is read, and how many places are shown."""

    tokens: int = Field(TOKENS, ge=100, le=MOST)
    top: int = Field(12, ge=1, le=200)
    length: int = Field(32, ge=4, le=256)
    seed: Seed = 0


class WrittenBody(CorpusBody):
    """Something named in writing: a head such as 3.1, or one of its channels."""

    FORM = "what"

    what: str
    model: str = ORGANISM


class EdgeBody(CorpusBody):
    """The signal of an edge of a circuit."""

    FORM = "circuit"

    circuit: CircuitBody
    edge: int = Field(ge=0)


class SignalBody(CorpusBody, FiringBody):
    """A signal of a firing."""

    side: Literal["dest", "src"]
    signal: int = Field(ge=0)


def where(kept: Kept, body: WrittenBody | EdgeBody | SignalBody, reporter: Reporter) -> dict[str, Any]:
    """The strongest places, each with its text."""
    model, subject = _subject(kept, body, reporter)
    places = find(model, subject, settings=body.settings(WhereSettings), progress=reporter.progress("Reading"))
    return {**asdict(places), "model": model.name}


def _subject(kept: Kept, body: WrittenBody | EdgeBody | SignalBody, reporter: Reporter) -> tuple[Model, Subject | Head]:
    """What is looked for, and in which model."""
    if isinstance(body, WrittenBody):
        if "#" in body.what:
            raise KeyholeError("edges of files are for `keyhole where`: here, give a circuit and an edge.")
        model = kept.model(body.model, reporter)
        return model, read_what(model, body.what)
    if isinstance(body, EdgeBody):
        circuit, model = circuit_of(kept, body.circuit, reporter)
        subjects = [subject for subject in signal_subjects(circuit, model) if subject.about["edge"] == body.edge]
        if not subjects:
            raise KeyholeError(f"edge {body.edge} is no signal into a head: choose a dest or src edge.")
        return model, subjects[0]
    ran = kept.ran(body, reporter)
    firing, _ = explained(body, ran)
    signals = firing.side(body.side).signals
    _require_signal(body.signal, signals)
    return ran.run.model, firing_subject(firing, signals[body.signal])


def _require_signal(index: int, signals: Sequence[Signal]) -> None:
    if not 0 <= index < len(signals):
        raise KeyholeError(f"there is no signal {index}: this side has {len(signals)}, from 0.")


# What do signals mean, as far as anybody tested it? The names that the server was given, with their evidence.


class NamingBody(Body):
    """Nothing is chosen: the names are those that the server was given."""


def naming(kept: Kept, body: NamingBody, reporter: Reporter) -> dict[str, Any]:
    """Every name with its outcome, tests and examples; how many are right, compared with the controls."""
    names = kept.naming()
    if names is None:
        raise KeyholeError(NO_NAMES)
    reporter.check()
    shares = [_share(names.share(*kind), "pass") for kind in names.question_kinds()]
    for share in (replace(names.above_chance(), group="names"), *names.controls):
        shares.append(_share(share, "pass" if share.group == RANDOM_PASS else "above chance"))
    about = {"model": names.model, "explainer": names.explainer, "seed": names.seed, "level": LEVEL}
    return {**about, "landmarks": LANDMARKS, "shares": shares, "signals": [_name(named) for named in names.signals]}


def _share(share: Share, counted: str) -> dict[str, Any]:
    return {**asdict(share), "counted": counted, "text": str(share)}


def _name(named: Named) -> dict[str, Any]:
    """One name; each test with its own outcome."""
    tests = [{**asdict(test), "outcome": named.outcome(test.kind, test.of)} for test in named.tests]
    return {**asdict(named), "tests": tests, "outcome": named.outcome()}


# What happens when signals are removed or doubled, or others in their place? Measured in the model's own pass, and
# compared with the prediction.

TOP = 10  # answers that are shown


class InterveneBody(FiringBody):
    """Signals of one side of a firing, and what is done with them."""

    side: Literal["dest", "src"]
    action: Literal["remove", "boost", "random"] = "remove"
    mode: CutMode = "exact"
    draws: int = Field(5, ge=0, le=50)  # of random channels, to compare with
    seed: Seed = 0
    target: Words = None
    signals: list[int] | None = None  # by their index; default: all that the search took away
    channels: list[int] | None = None  # of these signals; default: all


def intervene(kept: Kept, body: InterveneBody, reporter: Reporter) -> dict[str, Any]:
    """Remove or boost signals of one side, or as many random channels of the same writers."""
    ran = kept.ran(body, reporter)
    firing, _ = explained(body, ran)
    signals = _signals(firing.side(body.side), body.signals, body.channels)
    cut = Cut(firing.layer, firing.head, firing.dest, firing.src, signals, body.settings(TraceSettings).keys)
    generator, only_random = torch.Generator().manual_seed(body.seed), body.action == "random"
    draws = max(body.draws, 1) if only_random else body.draws
    randoms = [random_cut(ran.run, cut, generator) for _ in range(draws)]
    end = len(ran.run) - 1
    metric = Metric(end, tuple(choose_targets(ran.run, body.target or Likeliest(1), end)))
    outcomes = make(
        ran.run,
        randoms if only_random else [cut, *randoms],
        metric,
        mode=body.mode,
        boost=body.action == "boost",
        keep=True,
        progress=reporter.progress("Running the model"),
    )
    first, controls = outcomes[0], outcomes if only_random else outcomes[1:]
    # Under global removal other heads change as well: the prediction is not exact there.
    agrees = None if body.mode == "global" else abs(first.after - first.predicted) <= AGREES
    return {
        "action": body.action,
        "mode": body.mode,
        "side": body.side,
        "signals": body.signals,
        "agrees": agrees,
        **{name: getattr(first, name) for name in ("before", "after", "predicted", "metric_before", "metric_after")},
        "norm_ratio": first.norm_ratio,
        "cosine": first.cosine,
        **_before_after(firing, first, end),
        "controls": [
            {name: getattr(each, name) for name in ("after", "predicted", "metric_after")} for each in controls
        ],
    }


def _before_after(firing: Firing, outcome: Outcome, end: int) -> dict[str, Any]:
    """The row of attention and the answers, before and after."""
    run = firing.run
    assert outcome.row is not None and outcome.logits is not None
    with exact_matmul():
        row = run.attention_run(firing.layer).weights([firing.head], [firing.dest])[0, 0]
    return {
        "row_before": row[: firing.dest + 1].tolist(),
        "row_after": outcome.row[: firing.dest + 1].tolist(),
        "answers_before": predictions(run, run.logits[end], TOP),
        "answers_after": predictions(run, outcome.logits, TOP),
    }


def _signals(side: Side, chosen: list[int] | None, only: list[int] | None) -> tuple[Signal, ...]:
    """The chosen signals with these channels only; None: everything that the search took away on this side."""
    channels: dict[Writer, list[int]] = {}
    if chosen is None:
        for removal in side.removed:
            channels.setdefault(removal.writer, []).append(removal.channel)
    else:
        for index in chosen:
            _require_signal(index, side.signals)
            channels[side.signals[index].writer] = list(side.signals[index].channels)
    if only is not None:
        channels = {writer: [k for k in used if k in only] for writer, used in channels.items()}
    signals = tuple(Signal(writer, side.side, tuple(used)) for writer, used in channels.items() if used)
    if not signals:
        raise KeyholeError("nothing is left to take away: choose a signal of this side, and channels that it uses.")
    return signals
