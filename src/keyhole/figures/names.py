"""How do names read with what speaks for them? A page: shares beside controls, then every name with its evidence."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from keyhole.figures.page import Cell, Section, Spans, page
from keyhole.files import require_file, write_at_once
from keyhole.naming.attached import head_names
from keyhole.naming.cues import Cue
from keyhole.naming.files import to_json
from keyhole.naming.marks import parts
from keyhole.naming.named import LANDMARKS, Named, Naming
from keyhole.naming.representatives import Side
from keyhole.naming.scores import Share, Tested

WRITTEN = (".json", ".html", ".csv")
COLUMNS = ("signal", ">prompts", "name", "outcome", ">accuracy", ">AUC", ">corrected p", ">random as good")
_CONTROLS = (
    "Shuffled names: that of a signal of another head. Tokens alone: the commonest tokens at dest and src. Random "
    "directions: of the same heads, named in the same way; where one fires most, texts often have something in common, "
    "so beyond random are the names that pass and that at most 5 % of random directions' names equal."
)


def save_names(naming: Naming, path: Path | str) -> Path:
    """Write names as .json, .html or .csv, at once."""
    path = require_file(path, WRITTEN)
    made = {".json": to_json, ".html": names_page, ".csv": _csv}
    write_at_once(path, made[path.suffix.lower()](naming))
    return path


def names_page(naming: Naming, sides: Sequence[Side] = (), cues: Sequence[Cue] = ()) -> str:
    """The page; `sides`: representatives side by side, `cues`: what became of their cues when these were broken."""
    test = "Dest is marked in red, src in blue. The examples are some of those that the name was made of; "
    test += "it was tested on others, of texts that were not looked at before."
    sections = [
        Section("How many names are right?", _CONTROLS, _SHARES, [_share_row(one) for one in shares(naming)]),
        Section("Heads", _HEADS, ("head", ">signals", ">passed", "names that passed"), _head_rows(naming)),
        *(_side(one) for one in sides),
        *([Section("Broken cues", _BROKEN, _CUES, [_cue_row(one) for one in cues])] if cues else []),
        Section("Names", "", COLUMNS, [name_row(one) for one in naming.signals]),
        Section("Evidence", test),
        *(_evidence(one) for one in naming.signals),
    ]
    told = naming.share()
    summary = f"{len(naming.signals)} signals, named by {naming.explainer}. Detection: {told}."
    return page(f"{naming.model}: what its signals mean", f"{summary}\n\nBeside it, {LANDMARKS}.", sections)


_SHARES = ("group", ">signals", ">passed", ">without a name", ">untested", ">share", ">from", ">to")
_HEADS = "The names of a head are those of its signals that passed, of most prompts first."


def shares(naming: Naming) -> list[Share]:
    """What passes: each kind of question, then the controls of detection."""
    beyond = naming.beyond_random()
    asked = [naming.share(*one) for one in naming.asked()]
    return [*asked, *naming.controls, *([beyond] if beyond is not None else [])]


def _share_row(one: Share) -> Sequence[Cell]:
    return one.group, one.signals, one.passed, one.nameless, one.untested, one.share, one.low, one.high


def _head_rows(naming: Naming) -> list[Sequence[Cell]]:
    return [
        (f"{one.head[0]}.{one.head[1]}", one.signals, one.passed, "\n".join(str(a.name) for a in one.names))
        for one in head_names(naming)
    ]


def name_row(one: Named) -> tuple[Cell, ...]:
    """A name with its outcome and scores."""
    test, prompts = one.test(), one.about.get("prompts")
    scores = (None, None, None) if test is None else (test.accuracy, test.auc, test.corrected)
    return (one.id, None if prompts is None else int(prompts), str(one.name), one.outcome(), *scores, one.beyond)


def _side(one: Side) -> Section:
    text = f"Prompt {one.prompt} stands for {one.circuits} circuits: {' '.join(t.strip() for t in one.tokens)}"
    rows = [(edge.share, edge.text, edge.name) for edge in one.edges]
    return Section(one.group, text, (">of the answer", "signal", "name"), rows)


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
    about = [f"{key} {value}" for key, value in one.about.items() if key != "coordinates"]
    told += [", ".join(about)]
    rows = [(Spans(parts(shown)), shown.value, shown.attention) for shown in one.examples]
    return Section(one.id, "\n\n".join(told), ("example", ">value", ">attention"), rows, linked=False)


def _test_text(test: Tested) -> str:
    corrected = "" if test.corrected is None else f", corrected {test.corrected:.2g}"
    return f"{test.kind}, {test.of}: {test.right} of {test.asked} right (p {test.p:.2g}{corrected})"


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"


def _csv(naming: Naming) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name.removeprefix(">") for name in COLUMNS])
    writer.writerows(name_row(one) for one in naming.signals)
    return out.getvalue()
