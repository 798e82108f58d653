"""What is in a one-file page? Modules joined as they are, data that cannot break out, and nothing from elsewhere."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import keyhole
from keyhole import KeyholeError
from keyhole.circuits import from_json
from keyhole.circuits.circuit import Node
from keyhole.circuits.files import save
from keyhole.circuits.shown import strongest
from keyhole.faithfulness.story import numbers, together
from keyhole.web import page as bundle
from keyhole.web.page import in_script, page_data, to_html
from pages import carried
from synthetic import HOSTILE, hostile, synthetic


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules of one's own."""
    monkeypatch.setattr(bundle, "STATIC", tmp_path)
    for kept in (bundle.script, bundle.style, bundle._read):
        monkeypatch.setattr(bundle, kept.__name__, kept.__wrapped__)
    return tmp_path


def run(script: str) -> str:
    node = shutil.which("node")
    assert node is not None, "scripts are tried in node: run `make test`, which installs it"
    return subprocess.run([node, "-e", script], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_modules_are_joined_in_the_order_of_their_needs(static: Path) -> None:
    (static / "lib").mkdir()
    (static / "lib/a.js").write_text(
        'export const one = 1;\nconst hidden = "a";\nexport function name() {\n  return hidden;\n}\n'
    )
    (static / "lib/b.js").write_text(
        '// A comment.\nimport { name, one } from "./a.js";\nconst hidden = "b";\n'
        "/** @param {number} x */\n"
        "export default { sum: (x) => /** @type {any} */ (x) + one, names: name() + hidden };\n"
    )
    (static / "main.js").write_text(
        'import {\n  one,\n} from "./lib/a.js";\nimport b from "./lib/b.js";\n'
        "export class Told {\n  text = `${b.names}${b.sum(2)}`;\n}\n"
        "export async function later() {\n  return one;\n}\nexport default { told: new Told().text };\n"
    )
    joined = bundle.script("main.js")
    assert run(f"{joined}; console.log(keyhole.default.told)") == "ab3"  # each keeps its own `hidden`
    assert "comment" not in joined and joined.index("$lib_a =") < joined.index("$lib_b =") < joined.index("$main =")
    module = bundle.script("main.js", module=True)
    assert module.rstrip().endswith("export default $main.default;") and "const keyhole" not in module


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('import * as all from "./a.js";', "cannot be joined.*import \\* as all"),
        ('import { a as b } from "./a.js";', "cannot be joined"),
        ('import { a } from "elsewhere";', "cannot be joined"),
        ('export { a } from "./a.js";', "cannot be joined"),
        ('import { x } from "./main.js";', "main.js imports itself"),
    ],
)
def test_what_cannot_be_joined_is_refused(static: Path, line: str, message: str) -> None:
    (static / "a.js").write_text("export const a = 1;\n")
    (static / "main.js").write_text(f"{line}\n")
    with pytest.raises(KeyholeError, match=message):
        bundle.script("main.js")


def test_the_page_allows_its_own_script_and_style_alone() -> None:
    page = to_html(synthetic(20, 12))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None and policy[1].startswith("default-src 'none'") and "unsafe" not in policy[1]
    for kind in ("style", "script"):
        text = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert text is not None
        own = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{own}'" in policy[1]
    assert set(re.findall(r"https?://[^\s\"'`<>)]+", page)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert len(page) - len(json.dumps(carried(page))) < 300_000


def test_data_cannot_end_its_script() -> None:
    odd = hostile(synthetic(20, 12))
    page = to_html(odd, {odd.edges[0]: HOSTILE[1]})
    assert page.count("<script") == 3 and "<img" not in page
    assert carried(page)["circuit"]["tokens"][:2] == list(HOSTILE[:2])
    assert carried(page)["names"]["0"]["text"] == HOSTILE[1]
    assert json.loads(in_script(["</script>", "\u2028"])) == ["</script>", "\u2028"] and "<" not in in_script("<!--")


def test_a_measured_story_is_told_with_its_numbers(organism: keyhole.Model, tmp_path: Path) -> None:
    circuit = organism.run("When Mary and John went to the store, John gave a drink to").trace("Mary", against="John")
    told = circuit.story()
    save(circuit, tmp_path / "measured.html", story=told)
    save(circuit, tmp_path / "plain.html")
    measured, plain = (carried((tmp_path / f"{name}.html").read_text())["story"] for name in ("measured", "plain"))
    lines = [line for line in measured if "share" in line]
    for line, path in zip(lines, told.paths, strict=True):
        assert [step["numbers"] for step in line["steps"]] == [numbers(step) for step in path.steps]
        assert line["effect"] == path.effect
    assert measured[0] == {"text": "Words that decide", "heading": True, "about": f"effect: {told.words_by}"}
    words = [line for line in measured if "word" in line]
    assert [(one["word"], one["effect"], one["flips"]) for one in words[:2]] == [
        ("10:John", told.words[0].effect, told.words[0].flips),
        ("2:Mary", told.words[1].effect, told.words[1].flips),
    ]
    assert [one["minor"] for one in words] == sorted(one["minor"] for one in words)  # function words come after
    assert any(one["effect"] < 0 for one in words)  # both signs
    assert circuit.nodes[words[0]["nodes"][0]] == Node("embedding", 0, None, 10, 10)
    headings = [line for line in measured[1:] if line.get("heading")]
    assert headings[0]["text"] == "Paths that support the answer" and told.baseline in headings[0]["about"]
    assert {"text": together(told)} in measured and [line for line in measured if line.get("legend")] == measured[-2:]
    assert [line["share"] for line in plain if "share" in line] == [path.share for path in circuit.story().paths]
    assert not [line for line in plain if "word" in line or line.get("heading") or line.get("effect") is not None]
    assert "Not measured: give the model" in plain[-2]["text"] and measured[-1] == plain[-1]


def test_the_document_is_the_librarys_own() -> None:
    made = synthetic(60, 30)
    assert from_json(json.dumps(page_data(made)["circuit"])) == made
    assert any(line["text"].startswith("5 paths from words hold") for line in page_data(made)["story"])
    assert "left_out" not in page_data(made) and page_data(synthetic(60, 30, through=False))["story"] == []


def test_large_circuits_keep_what_is_strongest_and_hangs_together() -> None:
    for through in (True, False):
        made = synthetic(300, 60, through=through)
        part = strongest(made, 200)
        assert len(part.edges) == 200 and strongest(made, len(made.edges)) is made
        below = {len(part.nodes) - 1}
        assert part.nodes[-1].kind == "target"
        for _ in part.nodes:
            below |= {edge.sender for edge in part.edges if edge.receiver in below}
        assert below == set(range(len(part.nodes)))  # all of it leads to the answer
        kept = {(part.nodes[e.sender], part.nodes[e.receiver], e.side, e.weight, e.influence) for e in part.edges}
        every = {(made.nodes[e.sender], made.nodes[e.receiver], e.side, e.weight, e.influence) for e in made.edges}
        assert kept < every
    shares = sorted((edge.influence or 0 for edge in synthetic(300, 60).edges), reverse=True)
    held = sum(edge.influence or 0 for edge in strongest(synthetic(300, 60), 200).edges)
    assert held > 0.99 * sum(shares[:200])
    made = synthetic(300, 60)
    chosen = made.edges[5]
    names = {chosen: "a name", min(made.edges, key=lambda e: e.influence or 0): "of what is left out"}
    data = page_data(made, names, most=200)
    edges, nodes = data["circuit"]["edges"], data["circuit"]["nodes"]
    assert len(data["names"]) == 1
    (index,) = data["names"]
    assert data["names"][index] == {"text": "a name"} and edges[int(index)]["influence"] == chosen.influence
    assert nodes[edges[int(index)]["from"]]["dest"] == made.nodes[chosen.source].dest
    assert f"{len(made.edges) - len(edges):,} weak ones of {len(made.edges):,} edges" in data["left_out"]
