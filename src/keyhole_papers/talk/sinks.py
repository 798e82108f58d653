"""Do heads that rest on the first token listen to the same signals?"""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from matplotlib.figure import Figure

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.figures.store.sinks import sinks_figure
from keyhole.sink.explore import SinkSettings, study
from keyhole.sink.firings import StoredQuestion
from keyhole.sink.record import HALF, NEAR, NoSinksError, Sinks, SinkSide, middle
from keyhole_papers.finding import Interval
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Verdict
from keyhole_papers.svt.ioi import LEAST, Subject, is_gpt2, metric_of, subject
from keyhole_papers.told import Experiment, Told, judged, measured_on, numbered

_PROMPTS = 24
_MANY = 8  # heads


@dataclass(frozen=True)
class Rest:
    """Firings on the first token of a model: explained, compared, and without what they share."""

    model: str | None  # as it was asked for
    prompts: int
    sinks: Sinks
    about: str  # which prompts


def measure(job: Job) -> Rest:
    """The signals of all heads above the first layer, and what their shared directions do."""
    seen = subject(job)
    asked = [_asked(seen, number) for number in range(min(_PROMPTS, len(seen.examples)))]
    draws, controls = (99, 2) if job.quick else (99, 9)  # fewer could not be sure of anything
    try:
        settings = SinkSettings(draws=draws, controls=controls)
        found = study(seen.model, asked, settings, stage=lambda what: nullcontext(seen.progress))
    except NoSinksError as error:
        raise (KeyholeError if is_gpt2(job.model) else MissingModelError)(str(error)) from error
    return Rest(job.model, len(asked), found, seen.prompts.first(_PROMPTS).about)


def _asked(seen: Subject, number: int) -> StoredQuestion:
    """A prompt by its tokens, measured by IO against S."""
    example = seen.examples[number]
    run = seen.model.run(example.text)
    return StoredQuestion(number, run.token_ids, metric_of(example, run))


def _holds(side: SinkSide) -> bool:
    """Nearly the same signal in many heads: shared, anisotropy apart, and the cause of their firings."""
    return side.found == "shared" and len(side.controlled) >= _MANY


def judge(record: Rest) -> Verdict:
    """Do many heads of different layers have nearly the same dest and src signals, not by anisotropy?"""
    holds = [_holds(side) for side in record.sinks.sides]
    return judged(record, holds, first=record.prompts >= LEAST and any(holds))


def _tell(record: Rest) -> Told:
    lines, numbers = [], dict[str, dict[str, object]]()
    for side in record.sinks.sides:
        if not side.likeness:
            lines.append(f"{side.side} side: fewer than two layers have heads with one signal each.")
            continue
        bare, strict = side.likeness[0], side.likeness[-1]
        one = next(made for made in side.removals if made.taken is None)
        numbers[side.side] = {
            "heads": len(side.controlled),
            "cosine": Interval(*bare.cosine),
            "cosine, other channels": bare.shuffled_cosine[0],
            "cosine, anisotropy apart": Interval(*strict.cosine),
            "pairs alike": bare.near[0],
            "pairs alike, anisotropy apart": strict.near[0],
            "rank": bare.rank,
            "firings without one direction": Interval(*one.explained),
            "firings without one direction, random": middle(one.random_explained),
        }
        other = side.others[0]
        if not math.isnan(other.cosine):
            numbers[side.side]["cosine, other tokens"] = other.cosine
        lines.append(
            f"{side.side} side: {side.found}. {len(side.controlled)} heads with one signal each; mean cosine across "
            f"layers {bare.cosine[0]:.2f} (other channels {bare.shuffled_cosine[0]:.2f}, other tokens "
            f"{other.cosine:.2f}; without mean and largest directions {strict.cosine[0]:.2f}), {bare.near[0]:.1%} of "
            f"pairs above .5; their first shared direction is behind {one.explained[0]:.0%} of firings (random "
            f"{middle(one.random_explained):.0%})."
        )
    big = record.sinks.massive
    numbers[""] = {"massive coordinates": len(big), "share of tokens that rest": record.sinks.share}
    note = (
        f"Asked on each side: {_MANY} heads or more with one signal each, of which {NEAR:.0%} of pairs are alike "
        "(cosine above .5), more than with other channels of the same heads and than on other tokens, with and without "
        f"the streams' mean and largest directions; and few directions that take away {HALF:.0%} of held-out firings, "
        f"more than random ones. {measured_on(record)}"
    )
    return Told("\n".join(lines), numbered(numbers), note)


def _draw(record: Rest) -> Mapping[str, Figure]:
    return {"cosines": sinks_figure(record.sinks)}


RUNS: dict[str, Attempt] = {"talk-25": Experiment(measure, judge, _tell, _draw)}
