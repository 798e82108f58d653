"""How do names read with what speaks for them? A page: shares beside controls, then every name with its evidence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from keyhole.brief import head_name, model_label
from keyhole.files import require_file, write_at_once
from keyhole.naming.attached import head_names, parts
from keyhole.naming.cues import Cue
from keyhole.naming.judge.judge import RANDOM_PASS, Share, Tested
from keyhole.naming.record import LANDMARKS, Named, Naming, to_json
from keyhole.naming.representatives import Side
from keyhole.report import Cell, Report, Section, Spans, Table, as_html

WRITTEN = (".json", ".html", ".csv")
_SCORES = (">accuracy", ">AUC", ">corrected p", ">random as good", ">passing p")
COLUMNS = ("signal", ">prompts", "name", "outcome", *_SCORES)
_CONTROLS = (
    "A name is above chance by Fisher's exact test, corrected over signals. It passes if it is also beyond the names "
    "of random directions of the same heads, made and judged in the same way: where one of these fires most, texts "
    "often have something in common, too. Shuffled names: that of a signal of another head. Tokens alone: the "
    "commonest tokens at dest and src. Random that pass: each half of the random directions, held against the other."
)


def save_names(naming: Naming, path: Path | str) -> Path:
    """Write names as .json, .html or .csv, at once."""
    path = require_file(path, WRITTEN)
    made: dict[str, Callable[[], str]] = {
        ".json": lambda: to_json(naming),
        ".html": lambda: names_page(naming),
        ".csv": lambda: _names(naming).as_csv(),
    }
    write_at_once(path, made[path.suffix.lower()]())
    return path


def names_page(naming: Naming, sides: Sequence[Side] = (), cues: Sequence[Cue] = ()) -> str:
    """The page; `sides`: representatives side by side, `cues`: what became of their cues when these were broken."""
    test = "Dest is marked in red, src in blue. The examples are some of those that the name was made of; "
    test += "it was tested on others, of texts that were not looked at before."
    sections = [
        Section("How many names are right?", [_CONTROLS, _shares(naming)]),
        Section("Heads", [_HEADS, _head_names(naming)]),
        *(_side(one) for one in sides),
        *([Section("Broken cues", [_BROKEN, Table(_CUES, [_cue_row(one) for one in cues])])] if cues else []),
        Section("Names", [_names(naming)]),
        Section("Evidence", [test]),
        *(_evidence(one) for one in naming.signals),
    ]
    summary = f"{len(naming.signals)} signals, named by {naming.explainer}. "
    summary += f"Names that pass: {naming.share()}. Above chance: {naming.above_chance()}."
    title = f"{model_label(naming.model or 'a model')}: what its signals mean"
    return as_html(Report(title, f"{summary}\n\nBeside it, {LANDMARKS}.", sections))


_SHARES = ("group", "counted", ">signals", ">such", ">without a name", ">untested", ">share", ">from", ">to")
_HEADS = "The names of a head: those of its signals that are above chance; those that pass first, then of most prompts."


def _shares(naming: Naming) -> Table:
    """What passes, for each kind of question; then what is above chance, and the controls of detection."""
    above = [replace(naming.above_chance(), group="detection, top"), *naming.controls]
    passing = [naming.share(*one) for one in naming.question_kinds()]
    rows = [_share_row(one, "pass") for one in passing]
    rows += [_share_row(one, "pass" if one.group == RANDOM_PASS else "above chance") for one in above]
    return Table(_SHARES, rows)


def _share_row(one: Share, counted: str) -> Sequence[Cell]:
    return one.group, counted, one.signals, one.passed, one.nameless, one.untested, one.share, one.low, one.high


def _head_names(naming: Naming) -> Table:
    rows = [
        (head_name(one.head), one.signals, one.right, one.passed, "\n".join(str(a.name) for a in one.names))
        for one in head_names(naming)
    ]
    return Table(("head", ">signals", ">above chance", ">pass", "names above chance"), rows)


def _names(naming: Naming) -> Table:
    return Table(COLUMNS, [name_row(one) for one in naming.signals])


def name_row(one: Named) -> tuple[Cell, ...]:
    """A name with its outcome and scores."""
    test, prompts = one.test(), one.about.get("prompts")
    scores = (None,) * 5 if test is None else (test.accuracy, test.auc, test.corrected, test.beyond, test.passing)
    return (one.id, prompts, str(one.name), one.outcome(), *scores)


def _side(one: Side) -> Section:
    text = f"Prompt {one.prompt} stands for {one.circuits} circuits: {' '.join(t.strip() for t in one.tokens)}"
    rows = [(edge.share, edge.text, edge.name) for edge in one.edges]
    return Section(one.group, [text, Table((">of the answer", "signal", "name"), rows)])


_CUES = ("signal", "broken", "dest <- src", ">prompts", ">fires", ">name true", ">both agree", ">value", ">attention")
_BROKEN = (
    "The same prompts with the two names in the other order, a third name between them, or a sentence before it all. A "
    "signal fires with at least half of its usual value. Where its name is true and it does not fire, or the other way "
    "round, the name is of the texts and not of the signal."
)


def _cue_row(one: Cue) -> Sequence[Cell]:
    counts = (one.prompts, one.fires, one.said, one.agree)
    return (one.signal, one.how, f"{one.dest} <- {one.src}", *counts, one.value, one.attention)


def _evidence(one: Named) -> Section:
    told = [f"{one.name}: {one.outcome()}."]
    told += ["\n".join(_test_text(test) for test in one.tests)]
    told += [
        "\n".join(
            f"{claim.text}: {claim.examples:.0%} of examples, {_percent(claim.background)} of pairs at random, "
            f"{_percent(claim.hard)} of hard negatives (corrected p {claim.corrected:.2g})"
            for claim in one.name.claims
        )
    ]
    about = [f"{key} {_about_text(value)}" for key, value in one.about.items() if key != "coordinates"]
    told += [", ".join(about)]
    rows = [(Spans(parts(shown)), shown.value, shown.attention) for shown in one.examples]
    return Section(one.id, ["\n\n".join(told), Table(("example", ">value", ">attention"), rows)], linked=False)


def _about_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _test_text(test: Tested) -> str:
    corrected = "" if test.corrected is None else f", corrected {test.corrected:.2g}"
    return f"{test.kind}, {test.of}: {test.right} of {test.questions} right (p {test.p:.2g}{corrected})"


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"
