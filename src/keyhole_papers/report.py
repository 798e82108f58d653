"""How do all results read side by side? Totals of verdicts, one self-contained page, and one Markdown table.

A slide that shows a figure again, and what goes beyond the papers, are shown and not counted.
"""

import base64
import html
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Literal

from keyhole.errors import KeyholeError
from keyhole.files import require_file, require_folder, write_at_once
from keyhole_papers.catalogue import CATALOGUE, PAPERS, Paper
from keyhole_papers.results import SAID, Label, Result, merged, options_of, read_results, write_results

_MANY: dict[Label, str] = {
    **SAID,
    "needs a model": "need a model",
    "quick": "quick trials without a verdict",
    "schematic": "drawings",
}
_ONE: dict[Label, str] = {**SAID, "quick": "quick trial without a verdict"}


Kind = Literal["items", "toys", "language"]  # all; toys and theorems; language models; a drawing is about neither
Item = Sequence[Result]  # the one that a report shows, then those of other models, measured in full too


def items(results: Mapping[str, Result]) -> list[Item]:
    """What to show of each item, in the catalogue's order: the published model's result before a stand-in's.

    A slide shows what its figure shows. What an older version called otherwise is left out.
    """
    several: dict[str, list[Result]] = defaultdict(list)
    for result in results.values():
        several[result.id].append(result)
    shown: list[Item] = []
    for id, item in CATALOGUE.items():
        ordered = sorted(several.get(item.same_as or id) or several.get(id, []), key=_weight, reverse=True)
        if ordered:
            first, *rest = [replace(result, id=id) for result in ordered]
            shown.append((first, *(result for result in rest if result.finished and result.state != "quick")))
    return shown


def counts(shown: Sequence[Item], kind: Kind = "items") -> dict[Label, int]:
    """How many items of a kind have each verdict? Those that occur at all, in their order."""
    counted = [first for first, *_ in shown if first.published.counts]
    occur = Counter(first.label for first in counted)
    if kind != "items":
        needs = kind == "language"
        counted = [first for first in counted if bool(first.published.needs) == needs and not first.published.schematic]
    of_kind = Counter(first.label for first in counted)
    return {label: of_kind[label] for label in SAID if occur[label]}


def summary(shown: Sequence[Item]) -> str:
    """The total in a few sentences: all verdicts, those about toys and theorems, those about language models."""
    counted = sum(first.published.counts for first, *_ in shown)
    of = sum(item.counts for item in CATALOGUE.values())
    text = f"{counted} of {of} published figures, tables and theorems: {_listed(counts(shown))}."
    text += f" About toys and theorems: {_listed(counts(shown, 'toys'))}."
    text += f" About language models: {_listed(counts(shown, 'language'))}."
    copies = sum(first.published.same_as is not None for first, *_ in shown)
    beyond = sum(first.published.beyond for first, *_ in shown)
    left = [f"{copies} slide{'s' * (copies > 1)} that show{'s' * (copies == 1)} a figure again"] * bool(copies)
    left += [f"{beyond} beyond the papers"] * bool(beyond)
    return f"{text} Not counted: {' and '.join(left)}." if left else text


def _listed(numbers: Mapping[Label, int]) -> str:
    return ", ".join(f"{n} {(_ONE if n == 1 else _MANY)[label]}" for label, n in numbers.items() if n) or "none"


def _weight(result: Result) -> tuple[bool, ...]:
    """What a full measurement says counts most, of these what the published model says, then what is as published."""
    settings = result.settings
    quick = bool(settings.get("quick"))
    return (
        result.finished and not quick,
        result.state == "failed" and not quick,
        result.finished,
        result.state in ("reproduced", "not"),  # said of no stand-in
        bool(settings.get("model")),
        bool(settings.get("as_printed") or settings.get("revisions") or settings.get("explainer")),
        not settings.get("dtype"),
    )


_PAGE = Path(__file__).with_name("page.html")  # its style and script; it loads nothing from elsewhere
_SHADE = Template(".$label { color: var(--$label); } .bar .$label { background: var(--$label); }\n")
_KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
_SHORT: dict[Paper, str] = {"svf": "SVF", "svt": "SVT", "cc": "CC", "talk": "Talk"}
_MORE = (
    "`keyhole reproduce ID` measures one again. `keyhole reproduce --merge docs/reproduction.json` writes a page with "
    "every claim, every number that was measured, and why the verdict is what it is."
)
_TERMS = (
    "Reproduced: the published claim held here on the published model or toy. "
    "Partly: another model or other settings showed it, or a part of the claim held. "
    "Cannot be told: it ran, and what came out cannot decide: it is too small, or holds by construction. "
    "Not on a stand-in: another model was measured and does not show it; only the named model can decide. "
    "Needs a model: nothing could be measured without it. "
    "Quick trial: it ran, on too little for a verdict, and counts for nothing."
)


def to_html(results: Mapping[str, Result], folder: Path, *, title: str = "What reproduces") -> str:
    """The page: every result with its claim, pictures inside; `folder` is where their paths begin."""
    shown = items(results)
    shades = "".join(_SHADE.substitute(label=_slug(label)) for label in SAID)
    papers = [paper for paper in PAPERS if any(first.published.paper == paper for first, *_ in shown)]
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        summary=html.escape(summary(shown)),
        shades=shades,
        overview="".join(_overview(paper, shown) for paper in papers),
        buttons=_buttons(papers, shown),
        sections="".join(_section(paper, shown, folder) for paper in papers),
        footer=html.escape(_footer(shown)),
    )


def to_markdown(results: Mapping[str, Result]) -> str:
    """The tables: counts on top, then a short line for every result; the page has what was claimed and measured."""
    shown = items(results)
    lines = ["# Reproduction", "", summary(shown), ""]
    lines += ["| verdict | items | toys and theorems | language models |", "|---|---|---|---|"]
    toys, language = counts(shown, "toys"), counts(shown, "language")
    lines += [f"| {SAID[label]} | {n} | {toys[label]} | {language[label]} |" for label, n in counts(shown).items()]
    lines += ["", _footer(shown), "", _MORE]
    for paper, name in PAPERS.items():
        rows = [_line(item) for item in shown if item[0].published.paper == paper]
        if rows:
            lines += ["", f"## {name}", "", "| id | published | verdict | measured on |", "|---|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def write_report(results: Mapping[str, Result], folder: Path, *, markdown: Path | None = None) -> list[Path]:
    """Writes `report.html` beside the results and, if asked, the Markdown table; returns the files.

    A table `x.md` has its results beside it in `x.json`, without pictures: those that the folder lacks stay in it, so
    that a part can be measured again, here or elsewhere, and the table be written anew.
    """
    require_writable(folder, markdown)
    written = [folder / "report.html"]
    write_at_once(written[0], to_html(results, folder))
    if markdown is not None:
        written += write_table(results, markdown)
    return written


def write_table(results: Mapping[str, Result], markdown: Path) -> list[Path]:
    """Joins the results with those kept beside the table, and writes both anew; returns the files."""
    beside = markdown.with_suffix(".json")
    more = {result.key: result for result in map(_portable, results.values())}
    published = dict(sorted(merged(read_results(beside), more).items()))
    write_results(published, beside)
    write_at_once(markdown, to_markdown(published))
    return [markdown, beside]


def _portable(result: Result) -> Result:
    """Without pictures, and with the name of a model file wherever it lies: as it reads on another machine."""
    settings = dict(result.settings)
    if str(settings.get("model")).endswith(".gguf"):
        settings["model"] = Path(settings["model"]).name
    return replace(result, figures=(), settings=settings)


def require_writable(folder: Path, markdown: Path | None = None) -> None:
    """Refuses places that a report cannot take, so that this is known before the hours of measuring."""
    require_file(require_folder(folder) / "report.html")
    if markdown is None:
        return
    if require_file(markdown).suffix == ".json":
        raise KeyholeError(f"cannot write a table to {markdown}: results go beside it under that name; name it .md.")
    read_results(markdown.with_suffix(".json"))


def _footer(shown: Sequence[Item]) -> str:
    runs = {item[0].published.same_as or item[0].id: item for item in shown}  # a slide took no time
    minutes = sum(result.seconds for item in runs.values() for result in item) / 60
    return f"{minutes:.1f} minutes, without the training of heads and models that earlier runs had left. {_TERMS}"


def _slug(label: Label) -> str:
    return label.replace(" ", "-")


def _overview(paper: Paper, shown: Sequence[Item]) -> str:
    """A bar of verdicts per paper."""
    numbers = counts([item for item in shown if item[0].published.paper == paper])
    titles = {label: f"{count} {SAID[label]}" for label, count in numbers.items()}
    bars = "".join(
        f'<i class="{_slug(label)}" style="flex:{count}" title="{titles[label]}"></i>'
        for label, count in numbers.items()
    )
    name = f'<span><b>{_SHORT[paper]}</b> <span class="faint">{sum(numbers.values())}</span></span>'
    bar = f'<span class="bar" role="img" aria-label="{", ".join(titles.values())}">{bars}</span>'
    return f'{name}{bar}<span class="faint">{numbers.get("reproduced", 0)} reproduced</span>'


def _buttons(papers: list[Paper], shown: Sequence[Item]) -> str:
    def button(kind: str, value: str, text: str) -> str:
        pressed = "true" if value == "" else "false"
        return f'<button data-kind="{kind}" data-value="{value}" aria-pressed="{pressed}">{text}</button>'

    chosen = [button("paper", "", "All papers"), *(button("paper", paper, _SHORT[paper]) for paper in papers)]
    labels = [button("state", label, SAID[label]) for label in SAID if any(first.label == label for first, *_ in shown)]
    return "".join([*chosen, '<span class="gap"></span>', button("state", "", "All verdicts"), *labels])


def _section(paper: Paper, shown: Sequence[Item], folder: Path) -> str:
    rows = "".join(_row(item, folder) for item in shown if item[0].published.paper == paper)
    head = '<th class="where">item</th><th>published</th><th>measured here</th><th class="verdict">verdict</th>'
    table = f"<table><thead><tr>{head}</tr></thead>{rows}</table>"
    return f'<section data-paper="{paper}"><h2>{html.escape(PAPERS[paper])}</h2>{table}</section>'


def _row(item: Item, folder: Path) -> str:
    say, result, about = html.escape, item[0], item[0].published
    notes = [text for text in (result.note, *_others(item)) if text]
    note = "".join(f'<p class="note">{say(text)}</p>' for text in notes)
    command = "" if about.schematic else f"<code>{say(about.command)}</code>"
    measured = "".join(f"<p>{say(line)}</p>" for line in result.measured.splitlines())
    link = f'<a class="id" id="{about.id}" href="#{about.id}">{about.id}</a>'
    cells = (
        f'<td class="where">{link}<small>{say(about.figure)}</small></td>'
        f"<td><b>{say(about.title)}</b>{say(about.claim)}<br>{command}</td>"
        f"<td>{measured}{note}</td>"
        f'<td class="verdict"><span class="chip {_slug(result.label)}">{result.said}</span>{_how(result)}</td>'
    )
    pictures = "".join(_picture(folder / path, f"{about.id}: {about.title}") for path in result.figures)
    shown = f'<tr class="pictures"><td colspan="4"><div>{pictures}</div></td></tr>' if pictures else ""
    return f'<tbody data-state="{result.label}"><tr>{cells}</tr>{shown}</tbody>'


def _others(item: Item) -> list[str]:
    """What other models, and other ways of running them, said about the same item."""
    usual = "the stand-in" if item[0].published.needs else "toys"
    return [f"With {_on(other, usual)}: {other.said}. {other.measured}" for other in item[1:]]


def _how(result: Result) -> str:
    parts = [text] if (text := _on(result, "").strip()) else []
    if result.settings.get("seed"):
        parts.append(f"seed {result.settings['seed']}")
    if result.seconds:
        parts.append(f"{result.seconds:.0f} s")
    return "".join(f"<small>{html.escape(text)}</small>" for text in (result.remark, ", ".join(parts)) if text)


def _picture(path: Path, text: str) -> str:
    if path.suffix not in _KINDS or not path.is_file():
        return ""  # results may be read without their pictures
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:{_KINDS[path.suffix]};base64,{data}"
    return f'<img tabindex="0" loading="lazy" alt="{html.escape(text)}" src="{source}">'


def _line(item: Item) -> str:
    """What and where, and what came of it; with several models, the one that the verdict is of comes first."""
    first, about = item[0], item[0].published
    usual = "the organism" if about.needs else "toys"
    models = dict.fromkeys(_on(result, usual) for result in item if result.numbers)
    verdict = f"{first.said}: {first.remark}" if first.remark else first.said
    cells = (f"`{about.id}`", f"{about.figure}: {about.title}", verdict, ", ".join(models))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"


def _on(result: Result, usual: str) -> str:
    """The model, or what stands in for one, and in brackets how it was run."""
    how = " ".join(options_of(result.settings, beyond_model=True))
    return str(result.settings.get("model") or usual) + (f" ({how})" if how else "")
