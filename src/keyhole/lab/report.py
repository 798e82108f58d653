"""How do all results read side by side? One self-contained page, and one Markdown table."""

import base64
import html
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from keyhole.errors import KeyholeError
from keyhole.lab.catalogue import CATALOGUE, PAPERS, Paper, Published
from keyhole.lab.report_page import PAGE
from keyhole.lab.results import STATES, Result, State

_SAID: dict[State, str] = {
    "reproduced": "reproduced",
    "partly": "partly",
    "not": "not reproduced",
    "needs a model": "needs a model",
    "later": "later",
    "failed": "failed",
    "schematic": "drawing",
}
_MANY: dict[State, str] = {**_SAID, "needs a model": "need a model", "schematic": "drawings"}
_KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
_SHORT: dict[Paper, str] = {"svf": "SVF", "svt": "SVT", "cc": "CC", "talk": "Talk"}


def to_html(results: Mapping[str, Result], folder: Path, *, title: str = "What reproduces") -> str:
    """The page: every result with its claim, pictures inside; `folder` is where their paths begin."""
    ordered = _ordered(results)
    shades = "".join(
        f".{_slug(s)} {{ color: var(--{_slug(s)}); }} .bar .{_slug(s)} {{ background: var(--{_slug(s)}); }}\n"
        for s in STATES
    )
    papers = [paper for paper in PAPERS if any(one.paper == paper for one, _ in ordered)]
    return PAGE.format(
        title=html.escape(title),
        summary=html.escape(_summary(results)),
        shades=shades,
        overview="".join(_overview(paper, ordered) for paper in papers),
        buttons=_buttons(papers, results),
        sections="".join(_section(paper, ordered, folder) for paper in papers),
        footer=html.escape(_footer(results)),
    )


def to_markdown(results: Mapping[str, Result]) -> str:
    """The table: counts on top, then a line for every result."""
    lines = ["# Reproduction", "", _summary(results), "", "| verdict | items |", "|---|---|"]
    lines += [f"| {_SAID[state]} | {count} |" for state, count in _counts(results).items()]
    for paper, name in PAPERS.items():
        own = [(one, result) for one, result in _ordered(results) if one.paper == paper]
        if own:
            lines += [
                "",
                f"## {name}",
                "",
                "| id | published | measured here | verdict | command |",
                "|---|---|---|---|---|",
            ]
            lines += [_line(one, result) for one, result in own]
    return "\n".join([*lines, ""])


def write_report(results: Mapping[str, Result], folder: Path, *, markdown: Path | None = None) -> list[Path]:
    """Writes `report.html` beside the results and, if asked, the Markdown table; returns the files."""
    written = [folder / "report.html"]
    written[0].write_text(to_html(results, folder), encoding="utf-8")
    if markdown is not None:
        if not markdown.parent.is_dir():
            raise KeyholeError(f"cannot write {markdown}: there is no folder {str(markdown.parent)!r}; make it first.")
        markdown.write_text(to_markdown(results), encoding="utf-8")
        written.append(markdown)
    return written


def _ordered(results: Mapping[str, Result]) -> list[tuple[Published, Result]]:
    """In the catalogue's order; what an older version called otherwise is left out."""
    return [(one, results[id]) for id, one in CATALOGUE.items() if id in results]


def _counts(results: Mapping[str, Result]) -> dict[State, int]:
    counted = Counter(result.state for result in results.values())
    return {state: counted[state] for state in STATES if counted[state]}


def _summary(results: Mapping[str, Result]) -> str:
    counts = ", ".join(f"{n} {(_SAID if n == 1 else _MANY)[state]}" for state, n in _counts(results).items())
    return f"{len(results)} of {len(CATALOGUE)} published figures, tables and theorems: {counts}."


def _footer(results: Mapping[str, Result]) -> str:
    quick = any(result.settings.get("quick") for result in results.values())
    minutes = sum(result.seconds for result in results.values()) / 60
    text = (
        f"{minutes:.1f} minutes of measuring. Reproduced: the published claim held here on the published model or toy. "
    )
    text += "Partly: another model showed the pattern, or a part of the claim held."
    return text + (" Some runs were quick ones, too small for a claim." if quick else "")


def _slug(state: State) -> str:
    return state.replace(" ", "-")


def _overview(paper: Paper, ordered: list[tuple[Published, Result]]) -> str:
    """A bar of verdicts per paper."""
    own = Counter(result.state for one, result in ordered if one.paper == paper)
    bars = "".join(
        f'<i class="{_slug(state)}" style="flex:{own[state]}" title="{own[state]} {_SAID[state]}"></i>'
        for state in STATES
        if own[state]
    )
    told = ", ".join(f"{own[state]} {_SAID[state]}" for state in STATES if own[state])
    label = f'<span><b>{_SHORT[paper]}</b> <span class="faint">{sum(own.values())}</span></span>'
    drawn = f'<span class="bar" role="img" aria-label="{told}">{bars}</span>'
    return f'{label}{drawn}<span class="faint">{own["reproduced"]} reproduced</span>'


def _buttons(papers: list[Paper], results: Mapping[str, Result]) -> str:
    def button(kind: str, value: str, text: str) -> str:
        pressed = "true" if value == "" else "false"
        return f'<button data-kind="{kind}" data-value="{value}" aria-pressed="{pressed}">{text}</button>'

    chosen = [button("paper", "", "All papers"), *(button("paper", paper, _SHORT[paper]) for paper in papers)]
    states = [button("state", state, f"{_SAID[state]} {count}") for state, count in _counts(results).items()]
    return "".join([*chosen, '<span class="gap"></span>', button("state", "", "All verdicts"), *states])


def _section(paper: Paper, ordered: list[tuple[Published, Result]], folder: Path) -> str:
    rows = "".join(_row(one, result, folder) for one, result in ordered if one.paper == paper)
    head = '<th class="where">item</th><th>published</th><th>measured here</th><th class="verdict">verdict</th>'
    table = f"<table><thead><tr>{head}</tr></thead>{rows}</table>"
    return f'<section data-paper="{paper}"><h2>{html.escape(PAPERS[paper])}</h2>{table}</section>'


def _row(one: Published, result: Result, folder: Path) -> str:
    say = html.escape
    note = f'<p class="note">{say(result.note)}</p>' if result.note else ""
    command = "" if one.schematic else f"<code>{say(one.command)}</code>"
    measured = "".join(f"<p>{say(line)}</p>" for line in result.measured.splitlines())
    link = f'<a class="id" id="{one.id}" href="#{one.id}">{one.id}</a>'
    cells = (
        f'<td class="where">{link}<small>{say(one.figure)}</small></td>'
        f"<td><b>{say(one.title)}</b>{say(one.claim)}<br>{command}</td>"
        f"<td>{measured}{note}</td>"
        f'<td class="verdict"><span class="chip {_slug(result.state)}">{_SAID[result.state]}</span>{_how(result)}</td>'
    )
    pictures = "".join(_picture(folder / path, f"{one.id}: {one.title}") for path in result.figures)
    shown = f'<tr class="pictures"><td colspan="4"><div>{pictures}</div></td></tr>' if pictures else ""
    return f'<tbody data-state="{result.state}"><tr>{cells}</tr>{shown}</tbody>'


def _how(result: Result) -> str:
    parts = [str(result.settings["model"])] if result.settings.get("model") else []
    if result.settings.get("quick") and result.seconds:
        parts.append("quick run")
    if result.seconds:
        parts.append(f"{result.seconds:.0f} s")
    return f"<small>{html.escape(', '.join(parts))}</small>" if parts else ""


def _picture(path: Path, text: str) -> str:
    if path.suffix not in _KINDS or not path.is_file():
        return ""  # results may be read without their pictures
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:{_KINDS[path.suffix]};base64,{data}"
    return f'<img tabindex="0" loading="lazy" alt="{html.escape(text)}" src="{source}">'


def _line(one: Published, result: Result) -> str:
    measured = " ".join(part for part in (result.measured, result.note) if part)
    place = f"{one.figure}: {one.title}. {one.claim}"
    command = "" if one.schematic else f"`{one.command}`"
    cells = (one.id, place, measured, _SAID[result.state], command)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"
