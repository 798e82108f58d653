"""How does a study read? As a report, and as plain data for JSON; heads of rank 0: no_feature.py."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from keyhole.brief import Head, head_name, model_label
from keyhole.features.contrast import no_feature
from keyhole.features.contrast.lists import RankRow
from keyhole.features.contrast.moves import NOTHING, Effect
from keyhole.features.contrast.studies import Study
from keyhole.features.contrast.swaps import AnswerEffects
from keyhole.report import Report, Section, Table

_MOST = 8  # heads of a ranking that are shown
_ROUNDING = 1e-6  # of attention and probability
_HEADS = ("head", "feature", "ranks", ">mean shift", ">right", ">gap", ">share of gap", ">p")
_SWAPS = ("head", "swapped", ">rank", ">right", ">target", ">moved", ">random", ">normalised")
_CHANNELS = ("head", "feature", ">rank", ">dest", ">random", ">src", ">random", ">angle")
_CHANNELS_LEGEND = """dest, src: how many of the head's singular channels hold 90 % of the feature
angle: largest cosine of a principal angle with the other features, in key space"""
_SWEEP = ("head", "feature", ">entities", ">ranks")
_LEGEND = """ranks: 99 % energy / permutation null / split halves
4 (3-5): so few permutations leave open whether the null's rank is 3, 4 or 5
mean shift: share of the uncentred contrast that is a difference of mean keys
right: attention on the right keys; gap: their held-out logits minus the others'
share of gap: what of it passes through the feature; p: corrected over all heads
-: the rank that decides is 0, so there is no feature"""
_SWAPS_LEGEND = f"""right, target: attention after the swap; moved: from right to target
normalised (95 % interval): 0 = random subspaces of its rank, 1 = whole keys;
- where whole keys do not surely move {NOTHING:g} more than random subspaces,
moves nothing where even they move less than {NOTHING:g}"""


def report(study: Study, sweep: Mapping[str, Sequence[RankRow]] = MappingProxyType({})) -> Report:
    """The selected heads: their features, why some have none, what swaps do; and ranks against numbers of entities."""
    answers, channels, empty = study.answers, _channel_rows(study), no_feature.by_feature(study)
    swaps = Table(_SWAPS, swap_rows(_selected_swaps(study)))
    edited = Table(_SWAPS, [] if answers is None else swap_rows(answers.heads))
    return Report(
        f"Query-key features: {', '.join(study.features)}",
        summary(study),
        [
            Section("Heads", [Table(_HEADS, _head_rows(study)), _LEGEND, "\n".join(_hints(study))]),
            *(no_feature.section(study, cases, no_feature.as_options) for cases in empty.values()),
            Section("Swaps of a feature between two keys", [swaps, _SWAPS_LEGEND] if study.swaps else []),
            Section("Channels", [Table(_CHANNELS, channels), _CHANNELS_LEGEND] if channels else []),
            Section("The same swaps and the answer", [] if answers is None else [_answers_heading(answers), edited]),
            Section("Ranks against the number of entities", [Table(_SWEEP, _sweep_cells(sweep))]),
        ],
    )


def _head_rows(study: Study) -> list[tuple[str, ...]]:
    """Every selected head and feature: ranks, mean shift, attention, explained gap."""
    attention = {row.head: row for row in study.attention}
    rows: list[tuple[str, ...]] = []
    for head in study.selected:
        for name, features in study.features.items():
            score = next(score for score in study.ranking[name] if score.head == head)
            at = features.at(head)
            rows.append(
                (
                    head_name(head),
                    name,
                    "/".join(ranks_of(study, name, head)),
                    f"{float(features.mean_shift[at]):.2f}",
                    f"{attention[head].positive:.2f}",
                    f"{score.gap:.2f}",
                    f"{score.share:.2f}" if score.rank else "-",
                    f"{score.p_corrected:.3f}" if score.rank else "-",
                )
            )
    return rows


def ranks_of(study: Study, name: str, head: Head) -> tuple[str, str, str]:
    """The three ranks as text, the null's with what more permutations may say; - where there was no permutation."""
    features = study.features[name]
    at = features.at(head)
    null = "-" if features.null is None else str(int(features.null[at]))
    if features.null_range is not None and len(set(spread := features.null_range[at].tolist())) > 1:
        null += f" ({spread[0]}-{spread[1]})"
    halves = "-" if features.halves is None else str(int(features.halves[at]))
    return str(int(features.energy[at])), null, halves


def swap_rows(effects: dict[str, tuple[Effect, ...]]) -> list[tuple[str, ...]]:
    """Every condition of some heads."""
    rows: list[tuple[str, ...]] = []
    for head, conditions in effects.items():
        for effect in conditions:
            control = effect.random == effect.random  # not NaN
            rows.append(
                (
                    head,
                    effect.name,
                    "" if effect.name in ("full", "none") or head == "all" else str(effect.rank),
                    f"{effect.orig:.2f}",
                    f"{effect.target:.2f}",
                    _small(effect.shift),
                    _small(effect.random) if control else "",
                    _moved(effect) if control else "",
                )
            )
    return rows


def _small(moved: float) -> str:
    """Three digits, or the size of what would be 0.000."""
    return f"{moved:.3f}" if abs(moved) >= 0.0005 or moved == 0 else f"{moved:.0e}"


def _moved(effect: Effect) -> str:
    return "no feature" if effect.rank == 0 and abs(effect.shift) < _ROUNDING else normalised(effect)


def normalised(effect: Effect) -> str:
    """An effect between random subspaces and whole keys; why there is none where there is none."""
    if effect.still:
        return "moves nothing"
    if effect.normalised != effect.normalised or (effect.rank == 0 and effect.shift == 0):
        return "-"
    return f"{effect.normalised:.2f} [{effect.interval[0]:.2f}, {effect.interval[1]:.2f}]"


def _hints(study: Study) -> list[str]:
    """What the numbers suggest to try next."""
    said = []
    for name, features in study.features.items():
        shifted = [h for h in study.selected if float(features.mean_shift[features.at(h)]) > no_feature.MOSTLY]
        if study.settings.centre == "none" and shifted:
            said.append(
                f"Most of {name} is a difference of mean keys, the same for all queries. If queries vary, try --centre "
                "each."
            )
    return said


def _channel_rows(study: Study) -> list[tuple[str, ...]]:
    """Does the singular basis know the features of the selected heads, and do they overlap?"""
    rows: list[tuple[str, ...]] = []
    for head, shares in study.shares.items():
        for share in shares:
            others = [max(pair.key) for pair in study.angles[head] if share.feature in pair.names]
            cosine = f"{max(others):.2f}" if others else ""
            dest = str(share.dest_channels), f"{share.dest_random:.1f}"
            src = str(share.src_channels), f"{share.src_random:.1f}"
            rows.append((head_name(head), share.feature, str(share.rank), *dest, *src, cosine))
    return rows


def _answers_heading(answers: AnswerEffects) -> str:
    """What the table of answers shows."""
    return (
        f"The answer, between the right key's token and the target's, in {answers.samples} prompts run again with "
        f"edited keys ({100 * answers.right:.0f} % right before; the two tokens hold {100 * answers.mass:.0f} % of the "
        f"probability).\nAttention in these passes equals the analytic one within {answers.largest_miss:.0e}."
    )


def _sweep_cells(rows: Mapping[str, Sequence[RankRow]]) -> list[tuple[str, ...]]:
    """Ranks against the number of entities."""
    return [
        (head_name(row.head), name, str(row.entities), f"{row.energy}/{row.null}/{row.halves}")
        for name, ranks in rows.items()
        for row in ranks
    ]


def sweep_record(rows: dict[str, tuple[RankRow, ...]]) -> dict[str, Any]:
    """The sweep as plain data; nothing if there was none."""
    sweeps = {name: [{**asdict(row), "head": head_name(row.head)} for row in ranks] for name, ranks in rows.items()}
    return {"sweep": sweeps} if rows else {}


def _selected_swaps(study: Study) -> dict[str, tuple[Effect, ...]]:
    """The swaps of the selected heads."""
    return {head_name(head): study.swaps[head] for head in study.selected if head in study.swaps}


def counted(study: Study) -> str:
    """How many samples made the features, and how many others judge them."""
    fitted_samples = {name: features.samples for name, features in study.features.items()}
    if study.half is None:
        fits = ", ".join(f"{n} samples make {name}" for name, n in fitted_samples.items())
        return f"{fits}; {study.tested} others judge"
    ((name, fitted),) = fitted_samples.items()
    given = len(study.fits[name].resolved.contrast.samples)
    halves = f"of which one half makes the feature ({fitted}) and the other judges it ({study.tested})"
    return f"{given} samples of {name}, {halves}"


def origin(study: Study) -> str:
    """From what, and how, a study was made."""
    frame, settings = study.test.frame.replace("_", "-"), study.settings
    text = f"{model_label(study.model)}: {counted(study)}.\n"
    text += f"Frame {frame}, centring {settings.centre}, ranks by {settings.rank}."
    if not study.swaps:
        text += "\nPositive and negative keys stand in different prompts, so nothing can be swapped."
    return text


def summary(study: Study) -> str:
    """What was run, in a line or two, and how the heads were selected where none passed."""
    none = "" if study.passed else "\nNo head passes the selection; these three attend most to the right keys."
    return origin(study) + none


def ranking(study: Study, name: str) -> Report:
    """The heads that explain most of one feature's gap; and why selected heads have none."""
    scores = study.ranking[name]
    having = [score for score in scores if score.rank]
    rows = []
    for score in having:
        moved = [normalised(effect) for effect in study.swaps.get(score.head, ()) if effect.name == name]
        numbers = (score.rank, f"{score.gap:.2f}", f"{score.share:.2f}", f"{score.p_corrected:.3f}")
        rows.append((head_name(score.head), *numbers, " ".join(moved)))
    left, empty = having[_MOST:], len(scores) - len(having)
    lines = [f"and {len(left)} more heads"] * bool(left)
    lines += [f"{empty} of {len(scores)} heads have no feature (rank 0)."] * bool(empty)
    columns = ("head", ">rank", ">gap", ">share", ">p", "swapped")
    sections = [
        Section(
            "Heads by the share of the gap that their feature explains",
            [Table(columns, rows[:_MOST]), "\n".join(lines)],
        )
    ]
    if cases := no_feature.by_feature(study).get(name):
        sections.append(no_feature.section(study, cases, no_feature.as_python))
    return Report(f"{name} in {model_label(study.model)}", origin(study), sections, Table(columns, rows))


def record(study: Study) -> dict[str, Any]:
    """The whole study as plain data: every head, every number."""
    heads = []
    for row in study.attention:
        scores = {name: next(s for s in ranking if s.head == row.head) for name, ranking in study.ranking.items()}
        heads.append(
            {
                **asdict(row),
                "head": head_name(row.head),
                "ratio": row.ratio,
                "selected": row.head in study.selected,
                "features": {name: _feature(study, name, row.head, scores[name]) for name in study.features},
                "swaps": [asdict(effect) for effect in study.swaps.get(row.head, ())],
                "angles": [asdict(pair) for pair in study.angles.get(row.head, ())],
                "channels": [asdict(share) for share in study.shares.get(row.head, ())],
            }
        )
    answers = None if study.answers is None else asdict(study.answers)
    return {
        "model": study.model,
        "frame": study.test.frame,
        "rank_rule": study.settings.rank,
        "centre": study.settings.centre,
        "samples": {
            "given": {name: len(fit.resolved.contrast.samples) for name, fit in study.fits.items()},
            "fitted": {name: features.samples for name, features in study.features.items()},
            "tested": study.tested,
        },
        "selected": [head_name(head) for head in study.selected],
        "selection_passed": study.passed,
        "no_feature": no_feature.record(study),
        "heads": heads,
        "answers": answers,
    }


def _feature(study: Study, name: str, head: Head, score: Any) -> dict[str, Any]:
    features = study.features[name]
    at = features.at(head)
    optional = {
        "null": None if features.null is None else int(features.null[at]),
        "null_range": None if features.null_range is None else features.null_range[at].tolist(),
        "halves": None if features.halves is None else int(features.halves[at]),
        "p_largest": None if features.p is None else float(features.p[at]),
        "threshold": None if features.threshold is None else float(features.threshold[at]),
    }
    return {
        "energy": int(features.energy[at]),
        **optional,
        "mean_shift": float(features.mean_shift[at]),
        "singular_values": features.S[at].tolist(),
        "rank": score.rank,
        "gap": score.gap,
        "explained": score.explained,
        "share": score.share,
        "z": score.z,
        "p": score.p,
        "p_corrected": score.p_corrected,
    }
