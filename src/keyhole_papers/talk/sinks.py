"""Do heads that rest on the first token listen to the same signals?"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from matplotlib.figure import Figure

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.figures.store.sinks import sinks_figure
from keyhole.sink.explore import study
from keyhole.sink.firings import Asked
from keyhole.sink.record import HALF, NEAR, NoSinksError, Sinks, SinkSide, middle
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings, Interval, of_part
from keyhole_papers.job import Attempt, Job
from keyhole_papers.provenance import Provenance
from keyhole_papers.svt.ioi import LEAST, Subject, metric_of, of_gpt2, subject

_PROMPTS = 24
_MANY = 8  # heads


@dataclass(frozen=True)
class Rest:
    """Firings on the first token of a model: explained, compared, and without what they share."""

    of: Provenance
    prompts: int
    sinks: Sinks


def measure(job: Job) -> Rest:
    """The signals of all heads above the first layer, and what their shared directions do."""
    seen = subject(job)
    asked = [_asked(seen, number) for number in range(min(_PROMPTS, len(seen.examples)))]
    draws, controls = (99, 2) if job.quick else (99, 9)  # fewer could not be sure of anything
    of = of_gpt2(job.model, seen.prompts.first(_PROMPTS).about)
    try:
        found = study(seen.model, asked, draws=draws, controls=controls, stage=lambda what: nullcontext(seen.progress))
    except NoSinksError as error:
        raise (KeyholeError if of.real else MissingModelError)(str(error)) from error
    return Rest(of, len(asked), found)


def _asked(seen: Subject, number: int) -> Asked:
    """A prompt by its tokens, measured by IO against S."""
    example = seen.examples[number]
    run = seen.model.run(example.text)
    return Asked(number, run.token_ids, metric_of(example, run))


def _holds(side: SinkSide) -> bool:
    """Nearly the same signal in many heads: shared, anisotropy apart, and the cause of their firings."""
    return side.found == "shared" and len(side.controlled) >= _MANY


def findings(record: Rest) -> Findings:
    """Do many heads of different layers have nearly the same dest and src signals, not by anisotropy?"""
    sinks = record.sinks
    rows = [
        Finding("massive coordinates", len(sinks.massive)),
        Finding("share of tokens that rest", sinks.share, percent=True),
    ]
    for side in sinks.sides:
        rows += of_part(f"{side.side}", *_of_side(side))
    first = record.prompts >= LEAST and any(map(_holds, sinks.sides))
    unless = f"that holds on a side, in {LEAST} prompts or more"
    remark = "Cosines are across layers; anisotropy apart: without the mean and the largest directions of the streams."
    return Findings(rows, record.of, first=first, unless=unless, remark=remark)


def _of_side(side: SinkSide) -> list[Finding]:
    """How alike the signals of one side are, and what becomes of firings without the direction they share."""
    asked = (
        f"a shared signal, of {_MANY} heads or more with one signal each: {NEAR:.0%} of pairs are alike (cosine above "
        ".5), more than with other channels of the same heads and than on other tokens, with and without anisotropy; "
        f"and few directions take away {HALF:.0%} of held-out firings, more than random ones"
    )
    if not side.likeness:
        return [Finding("heads with one signal each", "in fewer than two layers", asked, _holds(side))]
    bare, strict = side.likeness[0], side.likeness[-1]
    whole = next(removal for removal in side.removals if removal.taken is None)
    return [
        Finding("signals", side.found, asked, _holds(side)),
        Finding("heads", len(side.controlled)),
        Finding("cosine", Interval(*bare.cosine)),
        Finding("cosine, other channels", bare.shuffled_cosine[0]),
        Finding("cosine, other tokens", side.others[0].cosine),
        Finding("cosine, anisotropy apart", Interval(*strict.cosine)),
        Finding("pairs alike", bare.near[0], percent=True),
        Finding("pairs alike, anisotropy apart", strict.near[0], percent=True),
        Finding("rank", bare.rank),
        Finding("firings without one direction", Interval(*whole.explained)),
        Finding("firings without one direction, random", middle(whole.random_explained)),
    ]


def _draw(record: Rest) -> Mapping[str, Figure]:
    return {"cosines": sinks_figure(record.sinks)}


RUNS: dict[str, Attempt] = {"talk-25": Experiment(measure, findings, _draw)}
