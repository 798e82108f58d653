"""How do names read, with their evidence? One report: names, shares compared with controls, then the evidence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from keyhole.brief import head_name, model_label
from keyhole.files import require_file, write_at_once
from keyhole.naming.attached import head_names, parts
from keyhole.naming.cues import Cue
from keyhole.naming.judge.judge import RANDOM_PASS, Share, Tested, too_few
from keyhole.naming.record import LANDMARKS, Named, Naming, to_json
from keyhole.naming.representatives import Side
from keyhole.report import Cell, Report, Section, Spans, Table, as_html

WRITTEN = (".json", ".html", ".csv")
_SCORES = (">accuracy", ">AUC", ">corrected p", ">random as good", ">passing p")
_COLUMNS = ("signal", ">prompts", "name", "outcome", *_SCORES)
_CONTROLS = (
    "A name is above chance by Fisher's exact test, corrected over signals. It passes if it is also better than the "
    "names of random directions of the same heads, which are named and judged in the same way: where one of these "
    "fires most, texts often have something in common, too. Shuffled names: that of a signal of another head. Tokens "
    "alone: the commonest tokens at dest and src. Random that pass: each half of the random directions, compared with "
    "the other."
)
_HEADS = "The names of a head: those of its signals that are above chance; those that pass first, then of most prompts."
_EVIDENCE = (
    "Dest is marked in red, src in blue. The examples are some of those that the name is made from. It was tested on "
    "others, of held-out texts."
)
_BROKEN = (
    "The same prompts with the two names in the other order, a third name between them, or a sentence before "
    "everything. A signal fires with at least half of its usual value. Where its name is true and it does not fire, or "
    "the other way round, the name describes the texts and not the signal."
)
_CUES = ("signal", "broken", "dest <- src", ">prompts", ">fires", ">name true", ">both agree", ">value", ">attention")


def report(naming: Naming, sides: Sequence[Side] = (), cues: Sequence[Cue] = ()) -> Report:
    """Names, how many are right compared with the controls, and the evidence.

    Args:
        naming: The names.
        sides: Representatives of a store side by side, as `side_by_side` gives them.
        cues: Where their signals fire once a cue is broken, as `cues_of` gives them.
    """
    summary = f"{len(naming.signals)} signals, named by {naming.explainer}. "
    summary += f"Names that pass: {naming.share()}. Above chance: {naming.above_chance()}."
    names = [(*_labels(named), *_score_texts(named)) for named in naming.signals]
    return Report(
        title=f"{model_label(naming.model or 'a model')}: what its signals mean",
        summary=f"{summary}\n\nLandmarks: {LANDMARKS}.",
        sections=[
            Section("Names", [Table(_COLUMNS, names)]),
            Section(
                "How many names are right?",
                [_CONTROLS, too_few(naming.random_directions) or "", _shares(naming), _layers(naming)],
            ),
            Section("Heads", [_HEADS, _head_names(naming)], page_only=True),
            *(_side(side) for side in sides),
            *([Section("Broken cues", [_BROKEN, Table(_CUES, [_cue_row(cue) for cue in cues])])] if cues else []),
            Section("Evidence", [_EVIDENCE], page_only=True),
            *(_evidence(named) for named in naming.signals),
        ],
        table=_rows(naming),
    )


def save_names(naming: Naming, path: Path | str) -> Path:
    """Write names; the file appears whole or not at all.

    Args:
        naming: The names.
        path: A file .json (which `load_naming` reads), .html (a page with the evidence) or .csv (a row per signal).
    """
    path = require_file(path, WRITTEN)
    forms: dict[str, Callable[[], str]] = {
        ".json": lambda: to_json(naming),
        ".html": lambda: names_page(naming),
        ".csv": lambda: _rows(naming).as_csv(),
    }
    write_at_once(path, forms[path.suffix.lower()]())
    return path


def names_page(naming: Naming, sides: Sequence[Side] = (), cues: Sequence[Cue] = ()) -> str:
    """The report as a self-contained page; for parameters see `report`."""
    return as_html(report(naming, sides, cues))


def _rows(naming: Naming) -> Table:
    """A row per signal, with all digits."""
    return Table(_COLUMNS, [(*_labels(named), *_scores(named)) for named in naming.signals])


def _labels(named: Named) -> tuple[Cell, ...]:
    return named.id, named.about.get("prompts"), str(named.name), named.outcome()


def _scores(named: Named) -> tuple[Cell, ...]:
    test = named.test()
    return (None,) * 5 if test is None else (test.accuracy, test.auc, test.corrected, test.beyond, test.passing)


def _score_texts(named: Named) -> tuple[Cell, ...]:
    """Scores to be read: p-values to three digits that count, since three decimals would make many of them zero."""
    return tuple(f"{score:.3g}" if isinstance(score, float) else score for score in _scores(named))


def _shares(naming: Naming) -> Table:
    """What passes, for each kind of question; then what is above chance, and the controls of detection."""
    rows = [_share_row(naming.share(*kind), "pass") for kind in naming.question_kinds()]
    for share in (replace(naming.above_chance(), group="names"), *naming.controls):
        rows.append(_share_row(share, "pass" if share.group == RANDOM_PASS else "above chance"))
    return Table(("names, or control", "counted", "how many, with a 95% interval"), rows)


def _share_row(share: Share, counted: str) -> Sequence[Cell]:
    return share.group, counted, str(share)


def _layers(naming: Naming) -> Table:
    """What passes in each layer, if there are several."""
    layers = naming.by_layer()
    rows = [(share.group, str(share)) for share in layers] if len(layers) > 1 else []
    return Table(("layer", "names that pass"), rows)


def _head_names(naming: Naming) -> Table:
    rows = [
        (
            head_name(head.head),
            head.signals,
            head.right,
            head.passed,
            "\n".join(str(named.name) for named in head.names),
        )
        for head in head_names(naming)
    ]
    return Table(("head", ">signals", ">above chance", ">pass", "names above chance"), rows)


def _side(side: Side) -> Section:
    tokens = " ".join(token.strip() for token in side.tokens)
    text = f"Prompt {side.prompt} stands for {side.circuits} circuits: {tokens}"
    if not side.edges:
        text += "\n\nNone of its signals has a name that is right."
    rows = [(f"{edge.share:.1%}", edge.text, edge.name) for edge in side.edges]
    return Section(side.group, [text, Table((">of the answer", "signal", "name"), rows)])


def _cue_row(cue: Cue) -> Sequence[Cell]:
    counts = (cue.prompts, cue.fires, cue.said, cue.agree)
    return (cue.signal, cue.how, f"{cue.dest} <- {cue.src}", *counts, cue.value, cue.attention)


def _evidence(named: Named) -> Section:
    """One name: its outcome, its tests, its claims, and some of the examples that it is made from."""
    claims = [
        f"{claim.text}: {claim.examples:.0%} of examples, {_percent(claim.background)} of pairs at random, "
        f"{_percent(claim.hard)} of hard negatives (corrected p {claim.corrected:.2g})"
        for claim in named.name.claims
    ]
    about = [f"{key} {_about_text(value)}" for key, value in named.about.items() if key != "coordinates"]
    paragraphs = [
        f"{named.name}: {named.outcome()}.",
        "\n".join(_test_text(test) for test in named.tests),
        "\n".join(claims),
        ", ".join(about),
    ]
    rows = [(Spans(parts(shown)), shown.value, shown.attention) for shown in named.examples]
    examples = Table(("example", ">value", ">attention"), rows)
    return Section(named.id, ["\n\n".join(paragraphs), examples], linked=False, page_only=True)


def _about_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _test_text(test: Tested) -> str:
    corrected = "" if test.corrected is None else f", corrected {test.corrected:.2g}"
    return f"{test.kind}, {test.of}: {test.right} of {test.questions} right (p {test.p:.2g}{corrected})"


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"
