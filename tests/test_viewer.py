"""Does circuit-tracer show our graphs? Its own models read them, and its own server and page show them, in Chromium.

The page draws with d3, d3-jetpack and dagre out of the net; here they come from npm (other scripts are empty, what is
not a script is refused).
"""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

import keyhole
from conftest import ROOT
from keyhole import Circuit, KeyholeError
from keyhole.circuits import add_to_viewer, to_neuronpedia
from pages import chromium

FETCHED = ROOT / ".cache" / "circuit_tracer"
PROMPT = "When Mary and John went to the store, John gave a drink to"
SCRIPTS = {
    "d3.js": ("d3-collection/dist/d3-collection.js", "d3/dist/d3.js"),
    "jetpack_2024-07-20.js": ("d3-jetpack/build/d3-jetpack.js",),
    "dagre.min.js": ("dagre/dist/dagre.min.js",),
}
AXES = """;{ const made = d3.conventions;  // what their jetpack has, and that of npm has not
d3.conventions = (given) => { const c = made(given);
c.drawAxis = (svg) => d3.drawAxis({ ...c, svg: svg ?? c.svg }); return c; }; }"""


@pytest.fixture(scope="module")
def models() -> ModuleType:
    path = FETCHED / "circuit_tracer" / "frontend" / "graph_models.py"
    assert path.is_file(), "make test downloads circuit-tracer's viewer; run it once"
    spec = importlib.util.spec_from_file_location("graph_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def circuits(organism: keyhole.Model) -> dict[str, Circuit]:
    run = organism.run(PROMPT)
    return {way: run.trace("Mary", against="John", through=way) for way in ("mlps", "heads")}


def names_of(circuit: Circuit) -> dict[Any, str]:
    return {edge: f"name {i}" for i, edge in enumerate(circuit.edges)}


# -- their models ----------------------------------------------------------------------------------------------------


def same(theirs: Any, ours: dict[str, Any]) -> None:
    """All that they have a field for was read as it was written, and nothing that they ask for was made up."""
    read = theirs.model_dump(exclude_unset=True)
    assert read and read == {name: value for name, value in ours.items() if name in type(theirs).model_fields}


def check_read(models: ModuleType, circuit: Circuit, **options: Any) -> None:
    ours = json.loads(to_neuronpedia(circuit, **options))
    found = models.Model.model_validate(ours, strict=True)
    same(found.metadata, ours["metadata"])
    same(found.qParams, ours["qParams"])
    assert len(found.nodes) == len(ours["nodes"]) > len(circuit.heads) > 0
    for theirs, own in zip(found.nodes, ours["nodes"], strict=True):
        same(theirs, own)
    assert found.links == ours["links"] and all(models.Link.model_validate(link, strict=True) for link in found.links)


@pytest.mark.parametrize("way", ["mlps", "heads"])
@pytest.mark.parametrize("named", [False, True])
def test_their_models_read_what_we_write(
    models: ModuleType, circuits: dict[str, Circuit], way: str, named: bool
) -> None:
    check_read(models, circuits[way], names=names_of(circuits[way]) if named else None)


def test_their_models_read_a_real_model(models: ModuleType, smollm2: keyhole.Model) -> None:
    check_read(models, smollm2.run(PROMPT).trace(" Mary", against=" John"))


def test_their_models_refuse_what_is_none(models: ModuleType, circuits: dict[str, Circuit]) -> None:
    ours = json.loads(to_neuronpedia(circuits["mlps"]))
    for part in ("transcoder_list", "prompt_tokens"):
        less = {name: value for name, value in ours["metadata"].items() if name != part}
        with pytest.raises(ValueError, match=part):
            models.Model.model_validate({**ours, "metadata": less})


# -- their server and page -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(circuits: dict[str, Circuit], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("graphs")
    add_to_viewer(circuits["heads"], made, slug="heads")
    add_to_viewer(circuits["mlps"], made, slug="mlps", names=names_of(circuits["mlps"]))
    hostile = tuple(f"<img src=x onerror=alert({i})>" for i in range(len(circuits["heads"].tokens)))
    add_to_viewer(replace(circuits["heads"], tokens=hostile), made, slug="hostile")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The command that users type, in a process of its own: it needs nothing but Python."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "circuit_tracer", "start-server"]
    process = subprocess.Popen(
        [*command, "--graph_file_dir", str(folder), "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(FETCHED)},
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(200):
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(f"http://127.0.0.1:{port}/data/graph-metadata.json").raise_for_status()
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/index.html"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


class Viewer:
    """Their page with one graph, and what it complained of."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.wrong: list[str] = []
        context = browser.new_context(viewport={"width": 1500, "height": 950})
        context.route("**/*", self._asked)
        self.page: Page = context.new_page()
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.goto(address)
        self.page.locator("text.node").first.wait_for()

    def _asked(self, route: Route) -> None:
        name = route.request.url.rsplit("/", 1)[-1]
        if "//127.0.0.1:" in route.request.url:
            route.continue_()
        elif name.endswith(".js"):  # those that they do not draw with are empty
            parts = [(FETCHED / "node_modules" / part).read_text() for part in SCRIPTS.get(name, ())]
            route.fulfill(body="\n".join(parts) + AXES * ("jetpack" in name), content_type="text/javascript")
        else:
            self.wrong.append(f"asked for {route.request.url}")
            route.abort()

    def at(self, node_id: str) -> tuple[float, float]:
        """The middle of a node, where they have drawn it."""
        x, y = self.page.locator("text.node").evaluate_all(
            """(all, id) => { const box = all.find((e) => e.__data__.node_id == id).getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2]; }""",
            node_id,
        )
        return x, y

    def rows(self, side: str) -> list[tuple[str, float]]:
        """Who is told to be linked with the node that was clicked, and by which weight."""
        rows = self.page.locator(f".node-connections .{side} .feature-row")
        labels, weights = rows.locator(".label").all_inner_texts(), rows.locator(".weight").all_inner_texts()
        return sorted(
            (label, float(weight.replace("\u2212", "-"))) for label, weight in zip(labels, weights, strict=True)
        )


@pytest.mark.parametrize("way", ["mlps", "heads"])
def test_their_page_draws_every_node_and_tells_every_link(
    browser: Browser, server: str, folder: Path, circuits: dict[str, Circuit], way: str
) -> None:
    ours = json.loads((folder / f"{way}.json").read_text())
    circuit, nodes = circuits[way], {node["node_id"]: node for node in ours["nodes"]}
    viewer = Viewer(browser, f"{server}?slug={way}")
    page = viewer.page
    assert page.locator("text.node").count() == len(nodes)
    written = page.locator("g.prompt-token text").all_text_contents()
    assert written == [token.replace("<bos>", "\u2039bos>") for token in circuit.tokens]
    pinned = page.locator("text.node.pinned").evaluate_all("all => all.map(e => e.__data__.node_id)")
    assert sorted(pinned) == sorted(ours["qParams"]["pinnedIds"])
    among = [link for link in ours["links"] if link["source"] in pinned and link["target"] in pinned]
    assert page.locator(".subgraph .supernode-container").count() == len(pinned)
    assert page.locator(".subgraph .link-path").count() == len(among) >= len(pinned) - 1 > 5
    head = next(i for i, node in enumerate(circuit.nodes) if node.kind == "head" and len(circuit.edges_into(i)) > 2)
    mlp = next(i for i, node in enumerate(circuit.nodes) if node.kind == "mlp")
    answer = next(i for i, node in enumerate(circuit.nodes) if node.kind == "target")
    for index in (answer, head, mlp):
        own = ours["nodes"][index]
        page.mouse.click(*viewer.at(own["node_id"]))
        expect(page.locator(".node-connections .feature-title")).to_have_text(own["clerp"], timeout=30_000)
        into = [(nodes[link["source"]], link["weight"]) for link in ours["links"] if link["target"] == own["node_id"]]
        shown = [(f'Emb: “{circuit.tokens[n["ctx_idx"]]}"' if n["layer"] == "E" else n["clerp"], w) for n, w in into]
        assert viewer.rows("input") == [(label, pytest.approx(weight, abs=6e-4)) for label, weight in sorted(shown)]
    assert viewer.wrong == []


def test_their_slider_prunes_by_influence(browser: Browser, server: str, folder: Path) -> None:
    graph = json.loads((folder / "mlps.json").read_text())
    ours, pinned = graph["nodes"], graph["qParams"]["pinnedIds"]
    viewer = Viewer(browser, f"{server}?slug=mlps")
    slider, nodes = viewer.page.locator(".slider-container input"), viewer.page.locator("text.node")
    assert float(slider.get_attribute("max") or 0) == 1 and nodes.count() == len(ours)
    slider.fill("0.95")
    always = [n for n in ours if n["feature_type"] in ("embedding", "logit") or n["node_id"] in pinned]
    kept = [n for n in ours if n not in always and n["influence"] <= 0.95]
    assert 0 < len(kept) < len(ours) - len(always)
    expect(nodes).to_have_count(len(kept) + len(always), timeout=30_000)
    assert viewer.wrong == []


def test_tokens_are_no_markup_there(browser: Browser, server: str, folder: Path) -> None:
    viewer = Viewer(browser, f"{server}?slug=hostile")
    for node in json.loads((folder / "hostile.json").read_text())["nodes"]:
        viewer.page.mouse.move(*viewer.at(node["node_id"]))  # shows its label there, as markup
        said = "Output" if node["feature_type"] == "logit" else "img src=x"
        expect(viewer.page.locator(".tooltip")).to_contain_text(said, timeout=30_000)
    assert viewer.page.locator("img").count() == 0 and viewer.wrong == []


# -- the list of graphs ----------------------------------------------------------------------------------------------


def test_graphs_are_listed_once_and_others_stay(circuits: dict[str, Circuit], tmp_path: Path) -> None:
    (tmp_path / "graph-metadata.json").write_text('{"graphs": [{"slug": "theirs", "scan": "s", "prompt": "p"}]}')
    for _ in range(2):
        path = add_to_viewer(circuits["mlps"], tmp_path)
    theirs, ours = json.loads((tmp_path / "graph-metadata.json").read_text())["graphs"]
    told = json.loads(path.read_text())["metadata"]
    assert theirs["slug"] == "theirs" and path == tmp_path / f"{told['slug']}.json"
    assert told["node_threshold"] < 1 and ours == {**told, "node_threshold": 1.0}
    add_to_viewer(circuits["heads"], tmp_path / "made", slug="heads")
    (heads,) = json.loads((tmp_path / "made" / "graph-metadata.json").read_text())["graphs"]
    assert heads["slug"] == "heads" and "node_threshold" not in heads  # there is no influence to prune by


@pytest.mark.parametrize("text", ["[]", "{}", '{"graphs": [1]}', "no"])
def test_a_file_of_another_kind_is_not_touched(circuits: dict[str, Circuit], tmp_path: Path, text: str) -> None:
    (tmp_path / "graph-metadata.json").write_text(text)
    with pytest.raises(KeyholeError, match="choose another folder"):
        add_to_viewer(circuits["mlps"], tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == [text]


def test_places_that_are_none_are_refused(circuits: dict[str, Circuit], tmp_path: Path) -> None:
    for slug in ("../mine", "a/b", "graph-metadata", "a\x00b", "a\nb", "\ud800"):
        with pytest.raises(KeyholeError, match="cannot be called"):
            add_to_viewer(circuits["mlps"], tmp_path, slug=slug)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(KeyholeError, match="is a file"):
        add_to_viewer(circuits["mlps"], tmp_path / "file")
