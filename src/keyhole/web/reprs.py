"""What does a notebook show of a result that ends a cell? Markup that changes nothing around it, with texts escaped.

Results with a report show its page (`keyhole.report`); the others are here. A run and the channels of a score are plain
markup with inline styles, in the notebook's own colours. Firings, circuits and verifications have interactive views,
each in a frame, so that several can stand in one notebook.
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
_HIGHEST = 900  # pixels of a frame; a longer page scrolls
_LONG = 24  # characters of a token
_HUES = {"more": "#3465a4", "less": "#cc4b37"}
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
    columns = _columns(_table(_answers(run), "next"), _table(_heads(run), f"heads that fire at {len(run) - 1}"))
    return _box(title, f'<div style="line-height:1.9">{"".join(chips)}</div>{columns}')


def channels_html(split: "Channels") -> str:
    """The channels of one score as bars, the largest first.

    Args:
        split: The score over its channels.

    >>> import keyhole
    >>> "channel 0" in channels_html(keyhole.load().run("Mary gave John a book").channels((3, 1)))
    True
    """
    terms = sorted(enumerate(split.relative_terms.tolist()), key=lambda term: -abs(term[1]))
    rows = [(f"channel {k}", x) for k, x in terms[:_CHANNELS]]
    if smaller := terms[_CHANNELS:]:
        rows.append((f"{len(smaller)} others", sum(x for _, x in smaller)))
    if split.relative_rest:
        rows.append(("rest", split.relative_rest))
    longest = max([1e-12, *(abs(x) for _, x in rows if x == x)])  # NaN where dest sees one key alone
    few = split.n_recon()
    title = [
        f"head {split.layer}.{split.head}, dest {split.dest}, src {split.src}: attention {split.attention:.3f}",
        f"{split.relative_attention:+.3f} against the mean of the other keys",
        *([] if few is None else [f"{few} of {len(terms)} channels are enough for it"]),
        f"S(v) {split.sparsity:.3f}",
    ]
    return _box("; ".join(title), _table([(name, _bar(x / longest), f"{x:+.3f}") for name, x in rows], ""))


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


def _answers(run: "Run") -> list[tuple[str, str, str]]:
    from keyhole.web.server.prompt import predictions

    likeliest = predictions(run, run.logits[-1], _ANSWERS)
    return [
        (_visible(token["text"]), _bar(token["probability"], both=False), f"{token['probability']:.1%}")
        for token in likeliest
    ]


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
            f"{site.layer}.{site.head} ← {token_label(run.tokens, site.src)}",
            _bar(site.attention, both=False),
            f"{site.attention:.3f}",
        )
        for site in sites
    ]


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
