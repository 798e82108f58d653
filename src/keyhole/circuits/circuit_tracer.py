"""How does circuit-tracer's own server show a circuit? From a folder of graphs, with a list of them beside.

keyhole.circuits.add_to_viewer(circuit, "graphs")
circuit-tracer start-server --graph_file_dir graphs     (in a shell; then http://localhost:8041)
"""

import json
from collections.abc import Mapping
from pathlib import Path

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.neuronpedia import to_neuronpedia
from keyhole.errors import KeyholeError
from keyhole.files import require_folder, write_at_once
from keyhole.strict import parse_json, read_text, require

LIST = "graph-metadata.json"


def add_to_viewer(
    circuit: Circuit, folder: str | Path, *, names: Mapping[Edge, str] | None = None, slug: str | None = None
) -> Path:
    """One more graph for `circuit-tracer start-server --graph_file_dir FOLDER`: SLUG.json, and its line in the list.

    The folder is made if need be. Graphs that are listed there stay; one of the same `slug` is replaced. Returns the
    graph's file.
    """
    folder = Path(folder)
    listed = _listed(folder / LIST)
    text = to_neuronpedia(circuit, names=names, slug=slug)
    metadata = json.loads(text)["metadata"]
    if "node_threshold" in metadata:
        metadata["node_threshold"] = 1.0  # here it is where pruning ends, and not where it begins
    path = folder / f"{metadata['slug']}.json"
    plain = path.parent == folder and path.name != LIST and metadata["slug"].isprintable()
    require(plain, f"a graph cannot be called {metadata['slug']!r} in a folder: give a slug of letters and numbers.")
    require_folder(folder)
    write_at_once(path, text)
    others = [graph for graph in listed if graph.get("slug") != metadata["slug"]]
    write_at_once(folder / LIST, json.dumps({"graphs": [*others, metadata]}, ensure_ascii=False, indent=1) + "\n")
    return path


def _listed(path: Path) -> list[dict[str, object]]:
    """The graphs that are there; a file of that name with anything else in it is not touched."""
    if not path.exists():
        return []
    try:
        found = parse_json(read_text(path))
        graphs = found.get("graphs") if isinstance(found, dict) else None
        require(isinstance(graphs, list) and all(isinstance(graph, dict) for graph in graphs), "it has no graphs.")
    except KeyholeError as error:
        raise KeyholeError(f"{path} is no list of circuit-tracer's graphs ({error}): choose another folder.") from error
    assert isinstance(graphs, list)
    return graphs
