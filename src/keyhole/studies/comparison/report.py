"""How does a comparison read? As a report, and as plain values for JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from keyhole.report import Picture, Report, Section, Table
from keyhole.stats import Interval, as_text
from keyhole.studies.comparison.compare import Comparison
from keyhole.studies.comparison.exclusive import Exclusive, What, Which
from keyhole.studies.comparison.figure import (
    comparison_figure,
    removals_figure,
    scores_figure,
    signals_figure,
    terms_figure,
)
from keyhole.studies.comparison.operands import TermComparison, TermRow
from keyhole.studies.comparison.score import Score
from keyhole.studies.comparison.signals import HeadRow, SignalComparison
from keyhole.studies.families.sets import Term

TOP = 15  # terms that are shown
SIDES: tuple[Which, Which] = ("a", "b")


def report(found: Comparison, top: int) -> Report:
    """What both sides are, share and do, with so many terms that differ."""
    names = (label.rsplit("/", 1)[-1] for label in (found.a, found.b))
    notes = "\n".join(f"note: {note}" for note in found.notes)
    return Report(
        " and ".join(names),
        "\n\n".join(filter(None, [_heading(found), notes])),
        [*_score_sections(found), *_term_sections(found, top), *_signal_sections(found)],
        _table(found),
        Picture(lambda: comparison_figure(found), "the two sides, compared"),
    )


def _score_sections(found: Comparison) -> list[Section]:
    if found.reference is None:
        return []
    reference = found.reference
    kinds = ", ".join(sorted(reference.kinds))
    text = f"{reference.name}: {reference.method}, {reference.source}. Scored kinds: {kinds}."
    picture = Picture(lambda: scores_figure(found), "scores")
    return [Section("Against the published circuit", [text, picture, _published_table(found)])]


def _term_sections(found: Comparison, top: int) -> list[Section]:
    if not found.terms:
        return []
    text = (
        "Likeness is the sum of the smaller frequencies over that of the larger; at the end, that of random halves of "
        "one side, and of as many circuits of each: fewer are less alike. Precision, recall and F1 are of a against b, "
        f"over what at least {found.terms[0].threshold:.0%} of the circuits have."
    )
    picture = Picture(lambda: terms_figure(found), "frequencies of terms on both sides")
    return [
        Section("What both have", [text, picture, _summary_table(found)]),
        *(
            Section(f"The {terms.granularity} that differ most", [_terms_table(terms, top)], page_only=not finest)
            for terms in found.terms
            for finest in [terms is found.terms[-1]]
        ),
    ]


def _signal_sections(found: Comparison) -> list[Section]:
    sections = []
    if found.signals is not None and found.signals.rows:
        text = (
            "The summed signals into each head of both representatives. Within and between are means over pairs of "
            "other prompts, with 95 % intervals; the floor is the lower of the families' 5 % quantiles. A head is told "
            "something different only if its cosine is below the floor, and pairs between families are less alike."
        )
        alone = replace(found, exclusive=None)  # removals have a picture of their own here
        picture = Picture(lambda: signals_figure(alone), "cosines")
        lines = "\n".join(_signal_lines(found.signals))
        sections.append(
            Section("Same heads, same signals?", [text, lines, picture, _signals_table(found.signals.rows)])
        )
    if found.exclusive is not None:
        text = "\n".join(_verdict_lines(found.exclusive))
        drawn = Picture(lambda: removals_figure(found), "removals")
        sections.append(Section("Do edges act on their own family?", [text, drawn, _exclusive_table(found.exclusive)]))
        edges = [(which, str(edge)) for which in SIDES for edge in getattr(found.exclusive, which)]
        sections.append(Section("The edges of one alone", [Table(("of", "edge"), edges)], page_only=True))
    return sections


def term_text(term: Term) -> str:
    """A term as it is written.

    >>> from keyhole.circuits.records import Component
    >>> term_text(Term(Component("head", 1, 6), Component("head", 3, 1), "dest", 5))
    '1.6 -> 3.1 dest [5]'
    """
    if term.target is None:
        return str(term.source)
    side = "" if term.side in (None, "target") else f" {term.side}"
    channel = "" if term.channel is None else f" [{term.channel}]"
    return f"{term.source} -> {term.target}{side}{channel}"


def _summary_table(found: Comparison) -> Table:
    """What both sides share, at each granularity."""
    columns = ("", ">a and b", ">a alone", ">b alone", ">likeness", ">precision", ">recall", ">F1")
    return Table((*columns, ">halves of a", ">of b", ">of both"), [_summary(one) for one in found.terms])


def _terms_table(terms: TermComparison, top: int) -> Table:
    """The terms whose frequencies differ most."""
    rows = [(term_text(row.term), _share(row.a), _share(row.b), _where(row)) for row in terms.rows[:top]]
    return Table((str(terms.granularity), ">in a", ">in b", "which have it"), rows)


def _signals_table(heads: Sequence[HeadRow]) -> Table:
    """Cosines of the representatives beside those of other prompts, head by head."""
    columns = ("head", "side", ">cosine", ">floor", ">within a", ">within b", ">between", "verdict")
    rows = [
        (
            *(str(row.place), row.side, f"{row.cosine:.2f}", "" if row.verdict == "no floor" else f"{row.floor:.2f}"),
            *(_spread(one) for one in (row.within_a, row.within_b, row.between)),
            row.verdict,
        )
        for row in heads
    ]
    return Table(columns, rows)


def _exclusive_table(found: Exclusive) -> Table:
    """The two by two, beside controls: the mean change of the answer over its size."""
    columns = ("removed", ">on prompts of a", ">on prompts of b", ">median a", ">median b", ">placed in a", ">in b")
    rows: list[tuple[str, ...]] = []
    for which in SIDES:
        names: dict[What, str] = {
            "exclusive": f"{len(getattr(found, which))} edges of {which} alone",
            "shared": f"{found.shared[which == 'b']} edges that both have",
            "random": f"random channels in those of {which}",
        }
        for what, name in names.items():
            mine, its = found.cell(which, "a", what), found.cell(which, "b", what)
            told = [as_text(one.spread, 2) if one.measured else "" for one in (mine, its)]
            told += [as_text(one.median, 2) if one.measured else "" for one in (mine, its)]
            rows.append((name, *told, f"{mine.placed:.0%}", f"{its.placed:.0%}"))
    return Table(columns, rows)


def _published_table(found: Comparison) -> Table:
    """Scores against a published circuit, over thresholds, with the recall of each class."""
    names = [name for name, _ in found.published[0].classes]
    columns = (">frequency", ">components", ">precision", ">recall", ">F1", ">random F1", *(f">{n}" for n in names))
    if found.published[0].edges is not None:
        columns = (*columns, ">edges", ">their precision", ">their recall", ">their F1", ">random F1")
    rows = [
        (
            *(f"{one.threshold:.2f}", *_scores(one.score, one.random_f1)),
            *(f"{own.both}/{own.there}" for _, own in one.classes),
            *(() if one.edges is None else _scores(one.edges, one.random_edges_f1)),
        )
        for one in found.published
    ]
    return Table(columns, rows)


def _scores(score: Score, chance: float) -> tuple[str, ...]:
    return str(score.found), *(f"{one:.2f}" for one in (score.precision, score.recall, score.f1, chance))


def _table(found: Comparison) -> Table:
    """Everything that was counted: scores against a published circuit, or every term with its frequencies."""
    if found.published:
        return _published_table(found)
    every = [(one.granularity, row) for one in found.terms for row in one.rows]
    rows = [(granularity, term_text(row.term), row.a, row.b) for granularity, row in every]
    return Table(("granularity", "term", ">a", ">b"), rows)


def _verdict_lines(found: Exclusive) -> list[str]:
    """What the two by two comes to."""
    lines = [_verdict(found, "a"), _verdict(found, "b")]
    if not math.isnan(found.interaction[0]):
        lines.append(
            f"on their own family edges change the answer by {as_text(found.interaction, 2)} more than on the other "
            "(below 0: each hurts its own)"
        )
    wrong = sum(found.wrong)
    if wrong:
        lines.append(f"{wrong} prompts that the model gets wrong are left out")
    if any(found.uncut):
        lines.append(f"{found.uncut[0]} and {found.uncut[1]} edges into answers, MLPs and values cannot be removed so")
    return lines


def _signal_lines(found: SignalComparison) -> list[str]:
    """Which heads are told something else in the two families? Nothing is said of those without a floor."""
    judged, lines = [row for row in found.rows if row.verdict != "no floor"], []
    if not judged:
        return []
    for verdict, name in (("different", "differ beyond noise"), ("less alike", "are less alike between than within")):
        told = [f"{row.place} {row.side} {row.cosine:.2f}" for row in judged if row.verdict == verdict]
        lines.append(f"signals that {name}: {'; '.join(told) or 'none'}")
    return lines


def _heading(found: Comparison) -> str:
    """Both sides in a line."""
    sides = []
    for name, label, count, prompt in zip("ab", (found.a, found.b), found.circuits, found.representatives, strict=True):
        by_others = found.reference is not None and label.removeprefix("published:") == found.reference.name
        circuits = "" if by_others else f", {count:,} circuit{'s' if count > 1 else ''}"
        told = f"; its representative is prompt {prompt}" if prompt is not None and count > 1 else ""
        sides.append(f"{name} is {label}{circuits}{told}")
    return "\n".join(sides)


def comparison_record(found: Comparison) -> dict[str, Any]:
    """Everything as plain values."""
    told: dict[str, Any] = {"a": found.a, "b": found.b, "circuits": found.circuits, "notes": found.notes}
    told["representatives"] = found.representatives
    told["terms"] = {
        one.granularity: {
            "threshold": one.threshold,
            "likeness": one.likeness,
            "halves": None if one.halves is None else asdict(one.halves),
            **_score(one.score),
            "rows": [{"term": term_text(row.term), "a": row.a, "b": row.b} for row in one.rows],
        }
        for one in found.terms
    }
    told["signals"] = None if found.signals is None else _signals(found)
    told["exclusive"] = None if found.exclusive is None else _exclusive(found.exclusive)
    if found.reference is not None:
        told["reference"] = {name: getattr(found.reference, name) for name in ("name", "model", "task", "source")}
        told["published"] = [
            {
                "threshold": one.threshold,
                "random_f1": one.random_f1,
                **_score(one.score),
                "edges": None if one.edges is None else {**_score(one.edges), "random_f1": one.random_edges_f1},
                "classes": {name: own.recall for name, own in one.classes},
                "missed": [str(component) for component in one.missed],
            }
            for one in found.published
        ]
    return told


def _summary(one: TermComparison) -> tuple[str, ...]:
    counts = (str(len(rows)) for rows in (one.shared, one.only_a, one.only_b))
    values = (one.likeness, one.score.precision, one.score.recall, one.score.f1)
    beside = ("", "", "") if one.halves is None else (one.halves.within_a, one.halves.within_b, one.halves.between)
    return (one.granularity, *counts, *(one if isinstance(one, str) else f"{one:.2f}" for one in (*values, *beside)))


def _where(row: TermRow) -> str:
    return "both" if row.a and row.b else "a alone" if row.a else "b alone"


def _share(value: float) -> str:
    return "<1%" if 0 < value < 0.005 else f"{value:.0%}"


def _spread(one: Interval | None) -> str:
    return "" if one is None else as_text(Interval(one.mean, max(one.low, -1.0), min(one.high, 1.0)), 2)


def _verdict(found: Exclusive, which: Which) -> str:
    answer, reason = found.verdict(which)
    return f"edges of {which} alone: {reason}" + (", so that it cannot be told" if answer is None else "")


def _score(score: Any) -> dict[str, float]:
    return {name: getattr(score, name) for name in ("precision", "recall", "f1", "found", "there", "both")}


def _signals(found: Comparison) -> dict[str, Any]:
    assert found.signals is not None
    rows = [{**asdict(row), "head": str(row.place)} for row in found.signals.rows]
    only = {"only_a": [str(one) for one in found.signals.only_a], "only_b": [str(one) for one in found.signals.only_b]}
    return {"matched": found.signals.matched, "members": found.signals.members, **only, "rows": rows}


def _exclusive(found: Exclusive) -> dict[str, Any]:
    cells = [{**asdict(one), "spread": one.spread, "median": one.median} for one in found.cells]
    return {
        "mode": found.mode,
        "edges": {which: [str(edge) for edge in getattr(found, which)] for which in SIDES},
        "shared": found.shared,
        "uncut": found.uncut,
        "wrong": found.wrong,
        "interaction": found.interaction,
        "verdicts": {which: found.verdict(which) for which in SIDES},
        "cells": cells,
    }
