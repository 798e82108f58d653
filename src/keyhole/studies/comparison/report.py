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


def report(comparison: Comparison, top: int) -> Report:
    """What both sides are, share and do; `top`: how many terms are shown at each granularity."""
    names = (label.rsplit("/", 1)[-1] for label in (comparison.a, comparison.b))
    notes = "\n".join(f"note: {note}" for note in comparison.notes)
    return Report(
        " and ".join(names),
        "\n\n".join(filter(None, [_heading(comparison), notes])),
        [*_score_sections(comparison), *_term_sections(comparison, top), *_signal_sections(comparison)],
        _table(comparison),
        Picture(lambda: comparison_figure(comparison), "the two sides, compared"),
    )


def _score_sections(comparison: Comparison) -> list[Section]:
    if comparison.reference is None:
        return []
    reference = comparison.reference
    kinds = ", ".join(sorted(reference.kinds))
    text = f"{reference.name}: {reference.method}, {reference.source}. Scored kinds: {kinds}."
    picture = Picture(lambda: scores_figure(comparison), "scores")
    return [Section("Against the published circuit", [text, picture, _published_table(comparison)])]


def _term_sections(comparison: Comparison, top: int) -> list[Section]:
    if not comparison.terms:
        return []
    text = (
        "Likeness is the sum of the smaller frequencies over that of the larger. The last columns have the likeness of "
        "random halves of one side, and of a half of each: smaller sets are less alike. Precision, recall and F1 are "
        f"of a against b, over terms that at least {comparison.terms[0].threshold:.0%} of the circuits have."
    )
    picture = Picture(lambda: terms_figure(comparison), "frequencies of terms on both sides")
    return [
        Section("What both have", [text, picture, _summary_table(comparison)]),
        *(
            Section(f"The {terms.granularity} that differ most", [_terms_table(terms, top)], page_only=not finest)
            for terms in comparison.terms
            for finest in [terms is comparison.terms[-1]]
        ),
    ]


def _signal_sections(comparison: Comparison) -> list[Section]:
    sections = []
    if comparison.signals is not None and comparison.signals.rows:
        text = (
            "The summed signals into each head of both representatives. Within and between are means over pairs of "
            "other prompts, with 95 % intervals; the floor is the lower of the families' 5 % quantiles. The signals of "
            "a head differ only if their cosine is below the floor, and pairs between families are less alike."
        )
        alone = replace(comparison, exclusive=None)  # removals have a picture of their own here
        picture = Picture(lambda: signals_figure(alone), "cosines")
        lines = "\n".join(_signal_lines(comparison.signals))
        sections.append(
            Section("Same heads, same signals?", [text, lines, picture, _signals_table(comparison.signals.rows)])
        )
    if comparison.exclusive is not None:
        text = "\n".join(_verdict_lines(comparison.exclusive))
        drawn = Picture(lambda: removals_figure(comparison), "removals")
        sections.append(
            Section("Do edges act on their own family?", [text, drawn, _exclusive_table(comparison.exclusive)])
        )
        edges = [(which, str(edge)) for which in SIDES for edge in getattr(comparison.exclusive, which)]
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


def _summary_table(comparison: Comparison) -> Table:
    """What both sides share, at each granularity."""
    columns = ("", ">a and b", ">a alone", ">b alone", ">likeness", ">precision", ">recall", ">F1")
    return Table((*columns, ">halves of a", ">of b", ">of both"), [_summary(terms) for terms in comparison.terms])


def _terms_table(terms: TermComparison, top: int) -> Table:
    """The terms whose frequencies differ most."""
    rows = [(term_text(row.term), _share(row.a), _share(row.b), _where(row)) for row in terms.rows[:top]]
    return Table((str(terms.granularity), ">in a", ">in b", "which have it"), rows)


def _signals_table(heads: Sequence[HeadRow]) -> Table:
    """Cosines of the representatives and of pairs of other prompts, head by head."""
    columns = ("head", "side", ">cosine", ">floor", ">within a", ">within b", ">between", "verdict")
    rows = [
        (
            *(str(row.place), row.side, f"{row.cosine:.2f}", "" if row.verdict == "no floor" else f"{row.floor:.2f}"),
            *(_spread(spread) for spread in (row.within_a, row.within_b, row.between)),
            row.verdict,
        )
        for row in heads
    ]
    return Table(columns, rows)


def _exclusive_table(exclusive: Exclusive) -> Table:
    """Removals of each side's edges on each side's prompts, with controls: the mean relative change of the answer."""
    columns = ("removed", ">on prompts of a", ">on prompts of b", ">median a", ">median b", ">placed in a", ">in b")
    rows: list[tuple[str, ...]] = []
    for which in SIDES:
        names: dict[What, str] = {
            "exclusive": f"{len(getattr(exclusive, which))} edges of {which} alone",
            "shared": f"{exclusive.shared[which == 'b']} edges that both have",
            "random": f"random channels in those of {which}",
        }
        for what, name in names.items():
            on_a, on_b = exclusive.cell(which, "a", what), exclusive.cell(which, "b", what)
            cells = [as_text(cell.spread, 2) if cell.measured else "" for cell in (on_a, on_b)]
            cells += [as_text(cell.median, 2) if cell.measured else "" for cell in (on_a, on_b)]
            rows.append((name, *cells, f"{on_a.placed:.0%}", f"{on_b.placed:.0%}"))
    return Table(columns, rows)


def _published_table(comparison: Comparison) -> Table:
    """Scores against a published circuit, over thresholds, with the recall of each class."""
    names = [name for name, _ in comparison.published[0].classes]
    columns = (">frequency", ">components", ">precision", ">recall", ">F1", ">random F1", *(f">{n}" for n in names))
    if comparison.published[0].edges is not None:
        columns = (*columns, ">edges", ">their precision", ">their recall", ">their F1", ">random F1")
    rows = [
        (
            *(f"{against.threshold:.2f}", *_scores(against.score, against.random_f1)),
            *(f"{score.both}/{score.there}" for _, score in against.classes),
            *(() if against.edges is None else _scores(against.edges, against.random_edges_f1)),
        )
        for against in comparison.published
    ]
    return Table(columns, rows)


def _scores(score: Score, chance: float) -> tuple[str, ...]:
    return str(score.found), *(f"{value:.2f}" for value in (score.precision, score.recall, score.f1, chance))


def _table(comparison: Comparison) -> Table:
    """Everything that was counted: scores against a published circuit, or every term with its frequencies."""
    if comparison.published:
        return _published_table(comparison)
    every = [(terms.granularity, row) for terms in comparison.terms for row in terms.rows]
    rows = [(granularity, term_text(row.term), row.a, row.b) for granularity, row in every]
    return Table(("granularity", "term", ">a", ">b"), rows)


def _verdict_lines(exclusive: Exclusive) -> list[str]:
    """What follows from the removals."""
    lines = [_verdict(exclusive, "a"), _verdict(exclusive, "b")]
    if not math.isnan(exclusive.interaction[0]):
        lines.append(
            f"on their own family edges change the answer by {as_text(exclusive.interaction, 2)} more than on the "
            "other (below 0: each hurts its own)"
        )
    wrong = sum(exclusive.wrong)
    if wrong:
        lines.append(f"{wrong} prompts that the model gets wrong are left out")
    if any(exclusive.uncut):
        lines.append(
            f"{exclusive.uncut[0]} and {exclusive.uncut[1]} edges into answers, MLPs and values cannot be removed so"
        )
    return lines


def _signal_lines(signals: SignalComparison) -> list[str]:
    """Which heads receive something else in the two families? Heads without a floor are left out."""
    judged, lines = [row for row in signals.rows if row.verdict != "no floor"], []
    if not judged:
        return []
    for verdict, name in (("different", "differ beyond noise"), ("less alike", "are less alike between than within")):
        heads = [f"{row.place} {row.side} {row.cosine:.2f}" for row in judged if row.verdict == verdict]
        lines.append(f"signals that {name}: {'; '.join(heads) or 'none'}")
    return lines


def _heading(comparison: Comparison) -> str:
    """Both sides in a line."""
    sides = []
    for name, label, count, prompt in zip(
        "ab", (comparison.a, comparison.b), comparison.circuits, comparison.representatives, strict=True
    ):
        by_others = comparison.reference is not None and label.removeprefix("published:") == comparison.reference.name
        circuits = "" if by_others else f", {count:,} circuit{'s' if count > 1 else ''}"
        representative = f"; its representative is prompt {prompt}" if prompt is not None and count > 1 else ""
        sides.append(f"{name} is {label}{circuits}{representative}")
    return "\n".join(sides)


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Everything as plain values."""
    record: dict[str, Any] = {
        "a": comparison.a,
        "b": comparison.b,
        "circuits": comparison.circuits,
        "notes": comparison.notes,
    }
    record["representatives"] = comparison.representatives
    record["terms"] = {
        terms.granularity: {
            "threshold": terms.threshold,
            "likeness": terms.likeness,
            "halves": None if terms.halves is None else asdict(terms.halves),
            **_score(terms.score),
            "rows": [{"term": term_text(row.term), "a": row.a, "b": row.b} for row in terms.rows],
        }
        for terms in comparison.terms
    }
    record["signals"] = None if comparison.signals is None else _signals(comparison)
    record["exclusive"] = None if comparison.exclusive is None else _exclusive(comparison.exclusive)
    if comparison.reference is not None:
        record["reference"] = {
            name: getattr(comparison.reference, name) for name in ("name", "model", "task", "source")
        }
        record["published"] = [
            {
                "threshold": against.threshold,
                "random_f1": against.random_f1,
                **_score(against.score),
                "edges": None
                if against.edges is None
                else {**_score(against.edges), "random_f1": against.random_edges_f1},
                "classes": {name: score.recall for name, score in against.classes},
                "missed": [str(component) for component in against.missed],
            }
            for against in comparison.published
        ]
    return record


def _summary(terms: TermComparison) -> tuple[str, ...]:
    counts = (str(len(rows)) for rows in (terms.shared, terms.only_a, terms.only_b))
    numbers = [terms.likeness, terms.score.precision, terms.score.recall, terms.score.f1]
    if terms.halves is not None:
        numbers += [terms.halves.within_a, terms.halves.within_b, terms.halves.between]
    return (terms.granularity, *counts, *(f"{number:.2f}" for number in numbers), *[""] * (7 - len(numbers)))


def _where(row: TermRow) -> str:
    return "both" if row.a and row.b else "a alone" if row.a else "b alone"


def _share(value: float) -> str:
    return "<1%" if 0 < value < 0.005 else f"{value:.0%}"


def _spread(spread: Interval | None) -> str:
    return "" if spread is None else as_text(Interval(spread.mean, max(spread.low, -1.0), min(spread.high, 1.0)), 2)


def _verdict(exclusive: Exclusive, which: Which) -> str:
    answer, reason = exclusive.verdict(which)
    return f"edges of {which} alone: {reason}" + (", so that nothing can be concluded" if answer is None else "")


def _score(score: Any) -> dict[str, float]:
    return {name: getattr(score, name) for name in ("precision", "recall", "f1", "found", "there", "both")}


def _signals(comparison: Comparison) -> dict[str, Any]:
    assert comparison.signals is not None
    rows = [{**asdict(row), "head": str(row.place)} for row in comparison.signals.rows]
    only = {
        "only_a": [str(place) for place in comparison.signals.only_a],
        "only_b": [str(place) for place in comparison.signals.only_b],
    }
    return {"matched": comparison.signals.matched, "members": comparison.signals.members, **only, "rows": rows}


def _exclusive(exclusive: Exclusive) -> dict[str, Any]:
    cells = [{**asdict(cell), "spread": cell.spread, "median": cell.median} for cell in exclusive.cells]
    return {
        "mode": exclusive.mode,
        "edges": {which: [str(edge) for edge in getattr(exclusive, which)] for which in SIDES},
        "shared": exclusive.shared,
        "uncut": exclusive.uncut,
        "wrong": exclusive.wrong,
        "interaction": exclusive.interaction,
        "verdicts": {which: exclusive.verdict(which) for which in SIDES},
        "cells": cells,
    }
