"""How does it read that a head has no feature? The verdict, why, and what other settings give, beside their controls.

The verdict is that of the study's own settings. Alternatives stand under it with the options that ask for them; they
replace nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from keyhole.brief import Head, head_name
from keyhole.features.contrast.alternatives import LEVEL, MOST_HEADS, Alternative, NoFeature
from keyhole.features.contrast.finding import RankRule
from keyhole.features.contrast.sums import Centre
from keyhole.report import Section, Table

if TYPE_CHECKING:
    from keyhole.features.contrast.studies import Study

Setting = tuple[Centre, RankRule]
Spell = Callable[[Setting], str]  # as options of the command, or as Python
MOSTLY = 0.5  # share of a contrast from which a mean shift is most of it
_HARDLY = 0.05  # share of the squared length of queries below which they hardly vary
_CONSTANT = 1e-6  # and below which they do not vary
_USUAL = 0.5  # p of a contrast that is smaller than most permuted ones
_FEW = 200  # samples below which more of them are advised
OTHERS = ("head", "--centre", "--rank", ">rank", ">share", ">p", ">moved", ">permuted", ">random", ">whole", "result")
_OTHERS_HEADING = "What other settings give there (the verdict above stays):"
_OTHERS_LEGEND = """share: of the held-out gap; p: of it, corrected over all heads and these settings
moved: attention that a swap of the feature moves from right to target keys
permuted: the same with permuted labels, mean of 99 features of its rank
random: with random subspaces of its rank; whole: with whole keys
(the centring pooled always gives the same contrast as each)"""


def as_options(setting: Setting) -> str:
    """Settings as the command line takes them."""
    return f"--centre {setting[0]} --rank {setting[1]}"


def as_python(setting: Setting) -> str:
    """Settings as `StudySettings` takes them."""
    return f'centre="{setting[0]}", rank="{setting[1]}"'


def by_feature(study: "Study") -> dict[str, list[NoFeature]]:
    """The heads without a feature, for every contrast that has such."""
    cases: dict[str, list[NoFeature]] = {}
    for case in study.no_feature:
        cases.setdefault(case.feature, []).append(case)
    return cases


def verdict(study: "Study", cases: Sequence[NoFeature], spell: Spell) -> str:
    """Where no feature was found, with which settings, and whether other heads have one."""
    settings, ranking = study.settings, study.ranking[cases[0].feature]
    default = (settings.centre, settings.rank) == (type(settings).centre, type(settings).rank)
    rule: Any = settings.rank  # a number has no such verdict
    text = f"No feature of {cases[0].feature} in {_heads([case.head for case in cases])}"
    text += f" with {spell((settings.centre, rule))}{', the default' if default else ''}."
    above = [score for score in ranking if score.rank]
    if not above:
        return f"{text} No other head has one either."
    sure = sum(score.p_corrected <= LEVEL for score in above)
    chance = " (5 % by chance)" if settings.rank == "null" else ""
    text += f" Ranks are above 0 in {len(above)} of {len(ranking)} heads{chance}"
    return f"{text}, with corrected p <= {LEVEL:g} in {sure}."


def reasons(study: "Study", cases: Sequence[NoFeature]) -> list[str]:
    """Why the study's settings say no: a sentence or two for each reason, with its heads where these are not all."""
    centred = study.settings.centre != "none"
    shifted = [case for case in cases if centred and case.mean_shift > MOSTLY]
    zero = [case for case in cases if case.largest == 0]
    small = [case for case in cases if 0 < case.largest <= case.threshold]
    mixed = [case for case in small if case in shifted and case.p > _USUAL]
    apart = [case for case in cases if case.largest > case.threshold]
    still = [case for case in cases if centred and case.query_variance < _HARDLY]
    undecided = [case for case in cases if case.undecided]
    few = [case for case in small if case not in shifted and case.samples < _FEW]
    same = "query" if all(case.query_variance < _CONSTANT for case in zero) else "key"
    sentences: list[tuple[list[NoFeature], str]] = [
        (
            shifted,
            f"{_percent([case.mean_shift for case in shifted])} of the uncentred contrast is a difference of mean "
            "keys, the same for every query. Centring takes it away: it does not show that queries choose keys.",
        ),
        (zero, f"the contrast is nothing but rounding: the {same} is the same in all samples."),
        (
            small,
            f"the contrast is {_range([f'{case.largest / case.threshold:.2f}' for case in small])} times as large as "
            f"its null, which 5 % of {cases[0].permutations} contrasts with permuted labels exceed; "
            f"{_percent([case.p for case in small])} of them are as large as it.",
        ),
        (
            mixed,
            "the null is large because permuted labels put both kinds of keys on both sides. Their difference, which "
            "centring takes from the contrast, counts there as chance.",
        ),
        (
            [] if centred else small,
            "the null is large because it is uncentred: it holds the mean query times chance differences of keys.",
        ),
        (apart, "the two halves of the samples do not confirm each other's directions."),
        (
            still,
            f"queries hardly vary ({_percent([case.query_variance for case in still])} of their squared length), so "
            "keys can hardly vary with them.",
        ),
        (undecided, "so few permutations leave open whether the null's rank is 0: ask for 4000 permutations."),
        (few, f"{cases[0].samples} samples are few: four times as many would halve the null."),
    ]
    return [_about(some, cases, sentence) for some, sentence in sentences if some]


def other_rows(cases: Sequence[NoFeature]) -> list[tuple[str, ...]]:
    """What other settings give, beside their controls. Two rules that give one feature share a row."""
    rules: dict[tuple[str, ...], list[str]] = {}  # by everything else that a row has
    for case in cases[:MOST_HEADS]:
        for other in case.alternatives:
            cells = [head_name(case.head), other.centre, str(other.rank)]
            cells += [f"{other.share:.2f}", f"{other.p:.3f}"] if other.rank else ["", ""]
            moved = () if other.swap is None else (other.swap.shift, other.permuted, other.swap.random, other.swap.full)
            cells += [f"{value:.3f}" for value in moved] or [""] * 4
            rules.setdefault((*cells, result(other)), []).append(other.rule)
    return [(head, centre, "/".join(names), *rest) for (head, centre, *rest), names in rules.items()]


def result(other: Alternative) -> str:
    """How an alternative stands to its controls, in a few words."""
    if other.fails == "permuted":
        return f"{100 * other.p_permuted:.0f} % of permuted do as much"
    if other.fails is None:
        return "exceeds its controls"
    return {
        "rank": "no feature",
        "gap": "share may be chance",
        "swap": "share is no chance; not swapped",
        "whole": "whole keys move nothing",
        "random": "no more than random",
    }[other.fails]


def conclusions(cases: Sequence[NoFeature], spell: Spell) -> list[str]:
    """What to make of the alternatives, and what would settle it."""
    beyond, near = _settings(cases, None), _settings(cases, "permuted")
    sentences = [f"{_named(heads, settings, spell)} exceeds its controls." for heads, settings in beyond.items()]
    sentences += [
        f"{_named(heads, settings, spell)} moves more than random subspaces, but not surely more than features of "
        "permuted labels: keys that differ along few directions give these whatever their labels."
        for heads, settings in near.items()
    ]
    unswapped = {} if any(other.swap for case in cases for other in case.alternatives) else _settings(cases, "swap")
    sentences += [
        f"{_named(heads, settings, spell)} explains more of the held-out gap than chance; nothing could be swapped."
        for heads, settings in unswapped.items()
    ]
    centres = {c for listed in (beyond, near, unswapped) for settings in listed.values() for c, _ in settings}
    if not centres:
        sentences.append("No other settings exceed their controls: they show no feature either.")
    if "none" in centres and any(case.mean_shift > MOSTLY for case in cases):
        sentences.append(
            "Uncentred, a feature may be the difference of mean keys: the head then tells them apart for every query "
            "alike. To show that queries choose, give samples in which the same words are positive for one query and "
            "negative for another."
        )
    if len(cases) > MOST_HEADS:
        sentences.append(f"{len(cases) - MOST_HEADS} more heads without a feature are in the JSON record, unswapped.")
    return sentences


def section(study: "Study", cases: Sequence[NoFeature], spell: Spell) -> Section:
    """All of it for the heads without a feature of one contrast."""
    columns = OTHERS if spell is as_options else ("head", "centre=", "rank=", *OTHERS[3:])
    return Section(
        f"Heads without a feature of {cases[0].feature}",
        [
            "\n".join([verdict(study, cases, spell), *_bullets(reasons(study, cases))]),
            _OTHERS_HEADING,
            Table(columns, other_rows(cases)),
            _OTHERS_LEGEND,
            "\n".join(_bullets(conclusions(cases, spell))),
            "" if spell is as_options else 'Ask for one by settings=StudySettings(centre="none", rank="energy").',
        ],
    )


def _bullets(sentences: Sequence[str]) -> list[str]:
    """A list, as lines."""
    return [f"- {sentence}" for sentence in sentences]


def record(study: "Study") -> list[dict[str, Any]]:
    """The same as plain data: why, and every alternative with the options that ask for it."""
    return [
        {
            **asdict(case),
            "head": head_name(case.head),
            "why": reasons(study, [case]),
            "alternatives": [
                {**asdict(other), "options": as_options((other.centre, other.rule)), "result": result(other)}
                for other in case.alternatives
            ],
        }
        for case in study.no_feature
    ]


def _settings(cases: Sequence[NoFeature], fails: str | None) -> dict[tuple[Head, ...], list[Setting]]:
    """Settings whose first failed control is this one (None: no control), by the heads where it is so."""
    heads: dict[Setting, list[Head]] = {}
    for case in cases:
        for other in case.alternatives:
            if other.fails == fails:
                heads.setdefault((other.centre, other.rule), []).append(case.head)
    alike: dict[tuple[Head, ...], list[Setting]] = {}
    for setting, where in heads.items():
        alike.setdefault(tuple(where), []).append(setting)
    return alike


def _heads(heads: Sequence[Head]) -> str:
    return ", ".join(map(head_name, heads))


def _named(heads: Sequence[Head], settings: Sequence[Setting], spell: Spell) -> str:
    return f"In {_heads(heads)}, {' or '.join(map(spell, settings))}"


def _about(some: Sequence[NoFeature], cases: Sequence[NoFeature], sentence: str) -> str:
    """A sentence with the heads that it is about, where these are not all."""
    if len(some) == len(cases):
        return sentence[0].upper() + sentence[1:]
    return f"In {_heads([case.head for case in some])}: {sentence}"


def _range(values: Sequence[str]) -> str:
    """From the smallest to the largest number, as they are written."""
    ordered = sorted(values, key=float)
    return " to ".join(dict.fromkeys([*ordered[:1], *ordered[-1:]]))


def _percent(shares: Sequence[float]) -> str:
    """Whole per cents, or one digit of less.

    >>> _percent([0.0031, 0.96])
    '0.3 to 96 %'
    """
    return f"{_range([f'{100 * share:.0f}' if share >= 0.01 else f'{100 * share:.1g}' for share in shares])} %"
