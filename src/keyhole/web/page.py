"""How does a circuit become one page? The explorer's modules joined into one script, with its data beside it.

Modules are joined in the order in which they need each other, each in a scope of its own; nothing is compiled. They are
plain: `import { a, b } from "./x.js";`, `import x from "./x.js";`, and `export` before a function, a constant, a class,
or `default`. Any other form is refused, because it would mean something else once joined.
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
    """A module and all that it imports, as one script.

    Args:
        entry: The module, as a path in the folder of static files.
        module: Is the script itself a module, with the entry's default export? Default: no; a constant `keyhole` has
            the entry's exports.

    >>> "import " in script("file.js")
    False
    """
    parts = [_scope(name) for name in _ordered(entry)]
    end = f"export default {_name(entry)}.default;" if module else f"const keyhole = {_name(entry)};"
    return "\n".join([*parts, end, ""])


@cache
def style(*names: str) -> str:
    """Some stylesheets as one.

    Args:
        *names: Their paths in the folder of static files.

    >>> style("style.css", "circuit.css").startswith(style("style.css"))
    True
    """
    return "".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def _ordered(entry: str) -> list[str]:
    """A module and all that it imports, each after those it imports itself; a cycle is refused."""
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
    exported = [name for _, name in _EXPORT.findall(text)]

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
    """A circuit as a self-contained page: tokens from left to right, layers from bottom to top.

    Args:
        circuit: The circuit. Of a large one only the strongest 4,000 edges are drawn.
        names: Texts that stand beside its edges, if there are some (see `keyhole.naming.attached`).
        story: Its story with measured effects. Default: the story without effects.

    >>> import keyhole
    >>> circuit = keyhole.load().run("When Mary and John went to the store, John gave a drink to").trace("Mary")
    >>> to_html(circuit).startswith("<!doctype html>")
    True
    """
    return one_file(
        f"{model_label(circuit.model['name'])}: why {question_label(circuit)}?",
        page_data(circuit, names, story=story),
        entry="file.js",
        styles=("style.css", "circuit.css"),
        text=circuit_text(circuit, names=names),
    )


def one_file(title: str, data: Any, *, entry: str, styles: Sequence[str], text: str) -> str:
    """A self-contained page.

    Args:
        title: Its title.
        data: What its script shows, as plain data.
        entry: The script's first module, which exports `start`.
        styles: Its stylesheets.
        text: The same as text, for readers without scripts.

    >>> page = one_file("A page", {}, entry="framed.js", styles=["style.css"], text="1 < 2")
    >>> "<pre>1 &lt; 2</pre>" in page
    True
    """
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
    """The data of the circuit view: the circuit's own document, names by edge, and the story.

    Args:
        circuit: The circuit.
        names: Texts that stand beside its edges.
        story: Its story with measured effects. Default: the story without effects.
        most: How many edges are kept: the strongest.

    >>> import keyhole
    >>> circuit = keyhole.load().run("When Mary and John went to the store, John gave a drink to").trace("Mary")
    >>> sorted(page_data(circuit))
    ['circuit', 'names', 'story']
    """
    part = strongest(circuit, most)
    if story is None and circuit.influence:
        story = tell(replace(circuit, run=None))  # of the whole circuit: in a part, influences do not add up
    named = names or {}
    if part is not circuit and named:  # edges refer to nodes by index, and a part has other indices
        identities = {_identity(circuit, edge): name for edge, name in named.items()}
        named = {edge: identities[key] for edge in part.edges if (key := _identity(part, edge)) in identities}
    data: dict[str, Any] = {
        "circuit": json.loads(replace(part, directions={}).to_json()),  # no view shows them
        "names": {str(index): {"text": named[edge]} for index, edge in enumerate(part.edges) if edge in named},
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
    """Allow this style and this script alone, by their hashes: no picture, no frame, no request to anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style_text, script_text)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _identity(circuit: Circuit, edge: Edge) -> tuple[Node, Node, str, tuple[int, ...]]:
    """What an edge is, in a circuit and in a part of it."""
    return circuit.nodes[edge.sender], circuit.nodes[edge.receiver], edge.side, edge.channels


def story_lines(circuit: Circuit, story: Story) -> list[dict[str, Any]]:
    """The story as every page shows it: words that decide, paths under their headings, what they carry, and a legend.

    Args:
        circuit: The circuit that is drawn: the whole one, or its strongest part. Lines have the indices of its nodes,
            so that pointing at a line lights what it is about.
        story: The story of the whole circuit.

    >>> import keyhole
    >>> circuit = keyhole.load().run("When Mary and John went to the store, John gave a drink to").trace("Mary")
    >>> lines = story_lines(circuit, circuit.story())
    >>> all("text" in line for line in lines)
    True
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
        subject = "The other word changes" if others == 1 else f"Each of the other {others} words changes"
        lines.append({"text": f"{subject} the {story.metric} by less than {story.least:.2f} on average."})
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
