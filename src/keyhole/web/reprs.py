"""What does a notebook show of a result that ends a cell? Markup that changes nothing around it, with texts escaped.

Results with a report show its page (`keyhole.report`), but the channels of a score are short: their report and a run
are plain markup with inline styles, in the notebook's own colours. Firings, circuits and verifications have interactive
views, each in a frame, so that several can stand in one notebook.
"""

import html
import json
from typing import TYPE_CHECKING, Any

from keyhole.brief import model_label
from keyhole.errors import KeyholeError
from keyhole.report import Bar, Cell, Picture, Report, Table
from keyhole.report.page import cell_html

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.faithfulness.removals import Verification
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing

_TOKENS, _ANSWERS, _HEADS = 300, 6, 8  # that are shown
_HIGHEST = 900  # pixels of a frame; a longer page scrolls
_LONG = 24  # characters of a token
_STYLES = ("style.css", "page.css", "firing.css", "framed.css")
_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def run_html(run: "Run") -> str:
    """Tokens, the likeliest next ones, and the heads that fire at the last token.

    Args:
        run: The run.

    >>> import keyhole
    >>> "Mary" in run_html(keyhole.load().run("Mary gave John a book"))
    True
    """
    shown = list(enumerate(run.tokens))
    if left := max(0, len(shown) - _TOKENS):
        shown = [*shown[: _TOKENS // 2], *shown[-_TOKENS // 2 :]]
    chips = [_chip(at, text) for at, text in shown]
    if left:
        chips.insert(_TOKENS // 2, f'<span style="opacity:.6">… {left:,} more … </span>')
    title = f"{model_label(run.model.name)}: {len(run):,} tokens"
    columns = _columns(_table(_answers(run)), _table(_heads(run)))
    return _box(title, f'<div style="line-height:1.9">{"".join(chips)}</div>{columns}')


def report_html(report: Report) -> str:
    """A short report in the notebook's own colours: its title, its texts and its tables.

    Args:
        report: The report.

    >>> import keyhole
    >>> "channel 0" in report_html(keyhole.load().run("Mary gave John a book").channels((3, 1)).report())
    True
    """
    parts = [part for section in report.sections for part in section.shown if not isinstance(part, Picture)]
    inside = [_table(part) if isinstance(part, Table) else _text(part) for part in parts]
    return _box(report.title, "".join([_text(report.summary), *inside]))


def firing_html(firing: "Firing") -> str:
    """The firing view, in which nothing can be removed: `firing.widget()` is for that.

    Args:
        firing: An explanation, as `run.explain` returns it.
    """
    from keyhole.requests.bodies import spell
    from keyhole.web.server.prompt import document

    data = {"show": "firing", "firing": json.loads(spell(document(firing))), "effects": []}
    lines = sum(3 + min(len(side.signals), 6) for side in firing.sides)
    return _framed(repr(firing).strip("<>"), data, str(firing), height=470 + 45 * lines)


def verification_html(verification: "Verification") -> str:
    """Predicted against measured, and all removals as a table.

    Args:
        verification: The result of `circuit.verify`.
    """
    from keyhole.requests.bodies import spell

    data = {"show": "verification", "verification": json.loads(spell(verification.record()))}
    return _framed("Verification", data, str(verification), height=570 + 27 * min(len(verification.rows), 15))


def circuit_html(circuit: "Circuit") -> str:
    """The circuit's page, in a frame.

    Args:
        circuit: The circuit.
    """
    from keyhole.web.notebook import circuit_page

    return circuit_page(circuit)._repr_html_()


def _framed(title: str, data: dict[str, Any], text: str, *, height: int) -> str:
    from keyhole.web.notebook import Page
    from keyhole.web.page import one_file

    page = one_file(title, data, entry="framed.js", styles=_STYLES, text=text)
    return Page(title, page, min(height, _HIGHEST))._repr_html_()


def _answers(run: "Run") -> Table:
    from keyhole.web.server.prompt import predictions

    likeliest = [(token["text"], token["probability"]) for token in predictions(run, run.logits[-1], _ANSWERS)]
    return Table(("next", "", ">"), [(_visible(text), Bar(p, signed=False), f"{p:.1%}") for text, p in likeliest])


def _heads(run: "Run") -> Table:
    """The firings of the last token most above uniform; the first token, where attention rests, is left out."""
    from keyhole.models.tokens import token_label
    from keyhole.qk.firings import find_firings

    rows: list[tuple[Cell, ...]]
    try:
        rows = [
            (
                f"{site.layer}.{site.head} ← {token_label(run.tokens, site.src)}",
                Bar(site.attention, signed=False),
                site.attention,
            )
            for site in [site for site in find_firings(run, dest=-1) if site.src > 0][:_HEADS]
        ]
    except KeyholeError as error:  # the weights have changed: the rest is still true
        rows = [(str(error), "", "")]
    return Table((f"heads that fire at {len(run) - 1}", "", ">"), rows)


def _visible(token: str) -> str:
    """A token with signs for its blanks; a long one is cut.

    >>> _visible(" Mary"), _visible(" "), _visible("x" * 30)
    ('Mary', '␣', 'xxxxxxxxxxxxxxxxxxxxxxx…')
    """
    text = token.strip() or token.replace(" ", "␣") or "∅"
    text = "".join(_SIGNS.get(sign, sign) for sign in text)
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def _chip(at: int, token: str) -> str:
    look = (
        "white-space:nowrap;margin-right:5px;padding:1px 4px;border:1px solid rgba(128,128,128,.35);border-radius:4px"
    )
    place = f'<span style="opacity:.55;font-size:80%">{at}</span> '
    return f'<span title="{html.escape(repr(token))}" style="{look}">{place}{html.escape(_visible(token))}</span> '


def _table(table: Table) -> str:
    """Not a table element: notebooks style those as data."""
    sides = ["right" if name.startswith(">") else "left" for name in table.columns]
    look = f"display:grid;grid-template-columns:repeat({len(sides)},max-content);gap:2px 10px;align-items:center"
    head = [f'<div style="opacity:.7">{html.escape(name.removeprefix(">"))}</div>' for name in table.columns]
    cells = [
        f'<div style="text-align:{side}">{cell_html(cell)}</div>'
        for row in table.rows
        for side, cell in zip(sides, row, strict=True)
    ]
    inside = "".join([*head, *cells]) if cells else "none"
    return f'<div style="{look};font-variant-numeric:tabular-nums">{inside}</div>'


def _text(text: str) -> str:
    return f'<p style="margin:6px 0;white-space:pre-line">{html.escape(text)}</p>' if text else ""


def _columns(*parts: str) -> str:
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px 40px;margin-top:10px">{"".join(parts)}</div>'


def _box(title: str, inside: str) -> str:
    look = "font:13px/1.45 system-ui,sans-serif;max-width:980px"
    return (
        f'<div style="{look}"><div style="font-weight:600;margin-bottom:6px">{html.escape(title)}</div>{inside}</div>'
    )
