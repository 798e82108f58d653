"""How does a page become one file? The explorer's modules joined, and what is shown inlined.

How do many modules become one script? In the order of their needs, each in a scope of its own; nothing is compiled.

The modules are plain: `import { a, b } from "./x.js";`, `import x from "./x.js";`, and `export` before a function, a
constant, a class, or `default`. Any other form is refused, because it would mean something else once joined.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any

from keyhole.brief import model_label
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.shown import strongest
from keyhole.circuits.text import circuit_text, question_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.routes import Path as StoryPath
from keyhole.faithfulness.routes import Story, Word
from keyhole.faithfulness.story import (
    either_way,
    headed,
    held_pieces,
    numbers,
    numbers_legend,
    step_label,
    tell,
    together,
    word_label,
    word_text,
    words_legend,
    words_pieces,
)

STATIC = Path(__file__).with_name("static")
_NAMES = r"\{\s*(\w+(?:\s*,\s*\w+)*),?\s*\}"
_IMPORT = re.compile(rf'^import (?:{_NAMES}|(\w+)) from "(\.{{1,2}}/[\w./-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (async function|function|const|class) (\w+)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default ", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)[ \t]*\n", re.MULTILINE | re.DOTALL)


@cache
def script(entry: str, *, module: bool = False) -> str:
    """All that `entry` needs, as one script: `keyhole` has its exports. Or a module with its default export."""
    parts = [_scope(name) for name in _ordered(entry)]
    end = f"export default {_name(entry)}.default;" if module else f"const keyhole = {_name(entry)};"
    return "\n".join([*parts, end, ""])


@cache
def style(*names: str) -> str:
    """Some stylesheets as one."""
    return "".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def _ordered(entry: str) -> list[str]:
    """The modules below one, each after those it imports; a cycle is refused."""
    done: list[str] = []
    _visit(entry, done, ())
    return done


def _visit(name: str, done: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise KeyholeError(f"{name} imports itself, through {' and '.join(above)}.")
    if name not in done:
        for _, _, needed in _IMPORT.findall(_read(name)):
            _visit(_beside(name, needed), done, (*above, name))
        done.append(name)


def _scope(name: str) -> str:
    """One module as a function that returns what it exports."""
    text = _read(name)
    exported = [found for _, found in _EXPORT.findall(text)]

    def taken(match: re.Match[str]) -> str:
        names, default, needed = match.groups()
        return f"const {f'{{ {names} }}' if names else f'{{ default: {default} }}'} = {_name(_beside(name, needed))};"

    text = _EXPORT.sub(r"\1 \2", _IMPORT.sub(taken, text))
    if _DEFAULT.search(text):
        text, exported = _DEFAULT.sub("const _default = ", text), [*exported, "default: _default"]
    odd = re.search(r"^(import|export)\b.*$", text, re.MULTILINE)
    if odd:
        raise KeyholeError(f"{name} has a line that cannot be joined with others: {odd[0]}")
    return f"const {_name(name)} = (() => {{\n{text.strip()}\nreturn {{ {', '.join(exported)} }};\n}})();"


@cache
def _read(name: str) -> str:
    """A module's text without comments on lines of their own, which no reader of the joined script needs."""
    return _COMMENT.sub("", (STATIC / name).read_text(encoding="utf-8"))


def _beside(name: str, needed: str) -> str:
    """Where an import leads, from the folder of static files.

    >>> _beside("views/circuit/axes.js", "../../lib/dom.js")
    'lib/dom.js'
    """
    parts: list[str] = []
    for part in (PurePosixPath(name).parent / needed).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _name(name: str) -> str:
    """What a module is called in the joined script.

    >>> _name("lib/dom.js")
    '$lib_dom'
    """
    return "$" + re.sub(r"\W", "_", name.removesuffix(".js"))


# How does a circuit look in a browser? One self-contained page: no network, no script from elsewhere.

EDGES = 4000  # a page carries so many at most: a browser draws and sorts them at once
_PAGE = Path(__file__).with_name("static") / "page.html"


def to_html(circuit: Circuit, names: Mapping[Edge, str] | None = None, *, story: Story | None = None) -> str:
    """Tokens from left to right, layers from bottom to top: a page to walk through, as it is shown everywhere.

    `names` of its edges, if there are some, stand beside them (see `keyhole.naming.attached`). The `story` may be one
    whose effects were measured; without it, one is told without.
    """
    return one_file(
        f"{model_label(circuit.model['name'])}: why {question_label(circuit)}?",
        page_data(circuit, names, story=story),
        entry="file.js",
        styles=("style.css", "circuit.css"),
        text=circuit_text(circuit, names=names),
    )


def one_file(title: str, data: Any, *, entry: str, styles: Sequence[str], text: str) -> str:
    """A page with its data, styles and script in it; the `text` is for readers without scripts."""
    style_text = "\n" + style(*styles)
    script_text = "\n" + script(entry) + "keyhole.start();\n"
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        policy=_policy(style_text, script_text),
        style=style_text,
        script=script_text,
        text=f"<pre>{html.escape(text)}</pre>",
        data=in_script(data),
        view="{}",
    )


def page_data(
    circuit: Circuit, names: Mapping[Edge, str] | None = None, *, story: Story | None = None, most: int = EDGES
) -> dict[str, Any]:
    """What the circuit view is told: the circuit's own document, names by edge, and the story."""
    part = strongest(circuit, most)
    if story is None and circuit.influence:
        story = tell(replace(circuit, run=None))  # of the whole: parts do not add up
    told = names or {}
    if part is not circuit and told:
        identities = {_identity(circuit, edge): name for edge, name in told.items()}
        told = {edge: identities[key] for edge in part.edges if (key := _identity(part, edge)) in identities}
    data: dict[str, Any] = {
        "circuit": json.loads(replace(part, directions={}).to_json()),  # no view shows them
        "names": {str(index): {"text": told[edge]} for index, edge in enumerate(part.edges) if edge in told},
        "story": [] if story is None else story_lines(part, story),
    }
    if part is not circuit:
        data["left_out"] = (
            f"left out: {len(circuit.edges) - len(part.edges):,} weak ones of {len(circuit.edges):,} edges, "
            "which a .json file has"
        )
    return data


def in_script(data: Any) -> str:
    r"""JSON that can stand inside a script element, whatever texts are in it.

    >>> in_script({"token": "</script>"})
    '{"token":"\\u003c/script>"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(style_text: str, script_text: str) -> str:
    """Nothing but this style and this script, by their sums; no picture, no frame, no request to anywhere."""
    sums = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style_text, script_text)]
    return (
        f"default-src 'none'; style-src 'sha256-{sums[0]}'; script-src 'sha256-{sums[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _identity(circuit: Circuit, edge: Edge) -> tuple[Node, Node, str, tuple[int, ...]]:
    """What an edge is, in a circuit and in a part of it."""
    return circuit.nodes[edge.sender], circuit.nodes[edge.receiver], edge.side, edge.channels


def story_lines(circuit: Circuit, story: Story) -> list[dict[str, Any]]:
    """The story as every page shows it: words that decide, paths under their headings, what they carry, and a legend.

    Words have their tokens; words and paths have the nodes of this circuit, or part of one, that they pass.
    """
    index = {node: i for i, node in enumerate(circuit.nodes)}
    lines = _word_lines(index, story)
    at = f"influence, and effect at {story.baseline}" if story.baseline else ""
    for number, (heading, paths) in enumerate(headed(story)):
        if heading:
            lines.append({"text": heading, "heading": True, "about": at if number == 0 else ""})
        lines += [_path_line(index, circuit, path) for path in paths]
    closing = [together(story), " ".join(held_pieces(story)) + ".", story.note and f"Note: {story.note}"]
    lines += [{"text": text} for text in closing if text]
    return [*lines, *({"text": text, "legend": True} for text in (numbers_legend(story), words_legend(story)) if text)]


def _word_lines(index: Mapping[Node, int], story: Story) -> list[dict[str, Any]]:
    """Words that decide, those with content first; a sentence where none does."""
    decisive = story.decisive
    if not story.words or not decisive:
        return [{"text": text} for text in words_pieces(story)]
    major = [word for word in decisive if not word.minor]
    heading = "Words that decide" if major else "No content word alone decides"
    lines: list[dict[str, Any]] = [{"text": heading, "heading": True, "about": f"effect: {story.words_by}"}]
    lines += [_word_line(index, story, word) for word in decisive]
    if others := len(story.words) - len(decisive):
        what = "The other word changes" if others == 1 else f"Each of the other {others} words changes"
        lines.append({"text": f"{what} the {story.metric} by less than {story.least:.2f} on average."})
    if either := either_way(story):
        lines.append({"text": " ".join(either)})
    return lines


def _word_line(index: Mapping[Node, int], story: Story, word: Word) -> dict[str, Any]:
    begins = (Node("embedding", 0, None, token, token) for token in word.tokens)
    return {
        "text": word_label(story, word),
        "word": word_text(story, word),
        "effect": word.effect,
        "flips": word.flips,
        "minor": word.minor,
        "tokens": list(word.tokens),
        "nodes": [index[node] for node in begins if node in index],
    }


def _path_line(index: Mapping[Node, int], circuit: Circuit, path: StoryPath) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for step in path.steps:
        nodes = [index[node] for node in map(Node.of, step.writers) if node in index]
        label = step_label(step, circuit.tokens).replace("<-", "←")
        steps.append({"text": label, "numbers": numbers(step), "nodes": nodes})
    nodes = [node for step in steps for node in step["nodes"]]
    text = " → ".join(step["text"] for step in steps)
    return {"text": text, "share": path.share, "effect": path.effect, "nodes": nodes, "steps": steps}
