"""What does a notebook show of a result that ends a cell? Markup that touches nothing around it, every text as text.

What is small is plain markup that has its styles on itself and takes the notebook's own colours. What has a view of its
own stands in a frame, so that two of them live in one notebook.
"""

import html
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from keyhole.brief import model_label
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.faithfulness.removals import Verification
    from keyhole.models.run import Run
    from keyhole.qk.channels import Channels
    from keyhole.tracing.firing import Firing

_TOKENS, _ANSWERS, _HEADS, _CHANNELS = 300, 6, 8, 16  # that are shown
_HIGHEST = 900  # pixels of a frame, which scrolls beyond
_LONG = 24  # characters of a token
_HUES = {"more": "#3465a4", "less": "#cc4b37"}
_STYLES = ("style.css", "page.css", "firing.css", "framed.css")
_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def run_html(run: "Run") -> str:
    """Tokens, what the model says next, and the heads that fire at the last token."""
    shown = list(enumerate(run.tokens))
    if left := max(0, len(shown) - _TOKENS):
        shown = [*shown[: _TOKENS // 2], *shown[-_TOKENS // 2 :]]
    chips = [_chip(at, text) for at, text in shown]
    if left:
        chips.insert(_TOKENS // 2, f'<span style="opacity:.6">… {left:,} more … </span>')
    title = f"{model_label(run.model.name)}: {len(run):,} tokens"
    columns = _columns(_table(_answers(run), "next"), _table(_heads(run), f"heads that fire at {len(run) - 1}"))
    return _box(title, f'<div style="line-height:1.9">{"".join(chips)}</div>{columns}')


def channels_html(found: "Channels") -> str:
    """The channels of one score as bars, the largest first."""
    terms = sorted(enumerate(found.relative_terms.tolist()), key=lambda term: -abs(term[1]))
    rest = [("rest", found.relative_rest)] if found.relative_rest else []
    others = (
        [(f"{len(terms) - _CHANNELS} others", sum(x for _, x in terms[_CHANNELS:]))] if len(terms) > _CHANNELS else []
    )
    rows = [*((f"channel {k}", x) for k, x in terms[:_CHANNELS]), *others, *rest]
    longest = max([1e-12, *(abs(x) for _, x in rows if x == x)])
    few = found.n_recon()
    told = [
        f"head {found.layer}.{found.head}, dest {found.dest}, src {found.src}: attention {found.attention:.3f}",
        f"{found.relative_attention:+.3f} against the mean of the other keys",
        *([] if few is None else [f"{few} of {len(terms)} channels are enough for it"]),
        f"S(v) {found.sparsity:.3f}",
    ]
    return _box("; ".join(told), _table([(name, _bar(x / longest), f"{x:+.3f}") for name, x in rows], ""))


def firing_html(firing: "Firing") -> str:
    """The firing view; nothing is removed here, `firing.widget()` does that."""
    from keyhole.web.server.bodies import spell
    from keyhole.web.server.prompt import document

    data = {"show": "firing", "firing": json.loads(spell(document(firing))), "effects": []}
    lines = sum(3 + min(len(side.signals), 6) for side in firing.sides)
    return _framed(repr(firing).strip("<>"), data, str(firing), height=470 + 45 * lines)


def verification_html(found: "Verification") -> str:
    """Predicted against measured, and all removals as a table."""
    from keyhole.web.server.bodies import spell

    data = {"show": "verification", "verification": json.loads(spell(found.record()))}
    return _framed("Verification", data, str(found), height=570 + 27 * min(len(found.rows), 15))


def circuit_html(circuit: "Circuit") -> str:
    """The circuit's page."""
    from keyhole.web.notebook import circuit_page

    return circuit_page(circuit)._repr_html_()


def _framed(title: str, data: dict[str, Any], text: str, *, height: int) -> str:
    from keyhole.web.notebook import Page
    from keyhole.web.page import one_file

    page = one_file(title, data, entry="framed.js", styles=_STYLES, text=text)
    return Page(title, page, min(height, _HIGHEST))._repr_html_()


def _answers(run: "Run") -> list[tuple[str, str, str]]:
    from keyhole.web.server.prompt import predictions

    found = predictions(run, run.logits[-1], _ANSWERS)
    return [(_visible(one["text"]), _bar(one["probability"], both=False), f"{one['probability']:.1%}") for one in found]


def _heads(run: "Run") -> list[tuple[str, str, str]]:
    """The firings of the last token most above uniform; the first token, where attention rests, is left out."""
    from keyhole.models.tokens import token_label
    from keyhole.qk.firings import find_firings

    try:
        sites = [site for site in find_firings(run, dest=-1) if site.src > 0][:_HEADS]
    except KeyholeError as error:  # the weights have changed: the rest is still true
        return [(str(error), "", "")]
    return [
        (
            f"{one.layer}.{one.head} ← {token_label(run.tokens, one.src)}",
            _bar(one.attention, both=False),
            f"{one.attention:.3f}",
        )
        for one in sites
    ]


def _visible(token: str) -> str:
    """What is there, even where it is blank; long tokens are cut.

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


def _bar(share: float, *, both: bool = True) -> str:
    """A bar of a share of the width, from the left, or to both sides of the middle."""
    share = 0.0 if share != share else max(-1.0, min(1.0, share))
    width = abs(share) * (50 if both else 100)
    left = 0 if not both else 50 if share >= 0 else 50 - width
    inner = f"position:absolute;top:2px;bottom:2px;left:{left:.1f}%;width:{width:.1f}%;"
    hue = _HUES["more" if share >= 0 else "less"]
    return (
        '<div style="position:relative;width:160px;height:12px;background:rgba(128,128,128,.12);border-radius:2px">'
        f'<div style="{inner}background:{hue};border-radius:2px"></div></div>'
    )


def _table(rows: Iterable[Sequence[str]], title: str) -> str:
    """Rows of a text, a bar and a number. Not a table element: notebooks style those as data."""
    cells = "".join(
        f'<div>{html.escape(name)}</div><div>{bar}</div><div style="text-align:right">{html.escape(value)}</div>'
        for name, bar, value in rows
    )
    head = f'<div style="opacity:.7;margin-bottom:3px">{html.escape(title)}</div>' if title else ""
    grid = "display:grid;grid-template-columns:max-content 160px max-content;gap:2px 10px;align-items:center"
    return f'<div>{head}<div style="{grid};font-variant-numeric:tabular-nums">{cells or "none"}</div></div>'


def _columns(*parts: str) -> str:
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px 40px;margin-top:10px">{"".join(parts)}</div>'


def _box(title: str, inside: str) -> str:
    look = "font:13px/1.45 system-ui,sans-serif;max-width:980px"
    return (
        f'<div style="{look}"><div style="font-weight:600;margin-bottom:6px">{html.escape(title)}</div>{inside}</div>'
    )
