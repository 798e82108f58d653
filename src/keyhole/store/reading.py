"""How do rows of tables become an outcome again? Columns of a part, cut into circuits, validated as files are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.columns import BOTH, NONE, SHARES, Edges, Firings, Lists, Mlps, Nodes, Removals
from keyhole.circuits.files import About, assembled
from keyhole.errors import KeyholeError
from keyhole.store.manifest import Manifest, Outcome
from keyhole.store.rows import ERRORS, FAITHFULNESS, MEASURED_OWN, MLP_COLUMNS, OWN
from keyhole.store.schema import MEASURED
from keyhole.strict import is_list, parse_json, read, require
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
_NEEDED = {  # which columns a circuit is made of, besides its row in `circuits`
    "nodes": (
        *("prompt", "node", "kind", "layer", "head", "dest", "src", "attention", "influence", "leaf"),
        *("explained", "tau", "visible", *MLP_COLUMNS.values()),
    ),
    "edges": (*("prompt", "edge", "from_node", "to_node", "side", "weight", "ig", "alone", "channels", "influence"),),
    "removals": ("prompt", "node", "side", "kind", "layer", "head", "src", "channel", "ig", "after"),
}
CIRCUIT_TABLES = tuple(_NEEDED)  # whose rows a circuit is made of
_PLAIN = ("attention", "leaf", *MEASURED)  # columns where null and a value stand beside each other


def needed(manifest: Manifest, table: str) -> tuple[str, ...]:
    """Which columns of a table a circuit is made of."""
    measured = tuple(MEASURED) if manifest.measured and table in ("nodes", "edges") else ()
    return (*_NEEDED[table], *measured)


@dataclass(frozen=True)
class Part:
    """Some rows of a table in memory, prompt by prompt, a column each."""

    prompts: Int[np.ndarray, "row"]
    columns: Mapping[str, Any]

    def of(self, prompt: int) -> Row:
        """The columns of one prompt's rows."""
        start, end = np.searchsorted(self.prompts, (prompt, prompt + 1)).tolist()
        return {name: _cut(column, start, end) for name, column in self.columns.items()}


def part_of(table: "pa.Table") -> Part:
    """The columns of a table as numpy has them: null is NaN, -1 or an empty text or list, which no circuit has."""
    if not _ordered(prompts := _array(table["prompt"])):
        order = np.argsort(prompts, kind="stable")  # another program may have written them
        table, prompts = table.take(order), prompts[order]
    names = [name for name in table.column_names if name != "prompt"]
    return Part(prompts, {name: table[name].to_pylist() if name in _PLAIN else _array(table[name]) for name in names})


def _ordered(numbers: Int[np.ndarray, "row"]) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())


def _array(column: "pa.ChunkedArray") -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(column.type):
        sizes = _array(pc.fill_null(pc.list_value_length(column), 0))
        return Lists(_array(pc.list_flatten(column)), sizes), np.cumsum(sizes) - sizes
    if pa.types.is_string(column.type):
        codes = pc.fill_null(column, "").dictionary_encode().combine_chunks()
        texts = np.array(codes.dictionary.to_pylist(), dtype=np.str_)
        return texts[codes.indices.to_numpy(zero_copy_only=False)]
    if pa.types.is_floating(column.type):
        return column.to_numpy().astype(np.float64, copy=False)
    return pc.fill_null(column, NONE).to_numpy().astype(np.int64)


def _cut(column: Any, start: int, end: int) -> Any:
    if not isinstance(column, tuple):
        return column[start:end]
    lists, starts = column
    sizes = lists.sizes[start:end]
    first = int(starts[start]) if len(sizes) else 0
    return Lists(lists.values[first : first + int(sizes.sum())], sizes)


def outcome_from(manifest: Manifest, row: Row, circuit: Circuit | None) -> Outcome:
    """The outcome of a row of `prompts`."""
    return Outcome(
        index=row["prompt"],
        example=_example(manifest, row),
        status=row["status"],
        circuit=circuit,
        **{name: row[name] for name in ("error", "correct", "predicted", "probability", "difference")},
    )


def circuit_from(manifest: Manifest, row: Row, parts: Mapping[str, Part]) -> Circuit:
    """The circuit of a row of `circuits` and of its own rows in the other tables."""
    tables = {table: part.of(row["prompt"]) for table, part in parts.items()}
    try:
        for table in CIRCUIT_TABLES:
            size = len(next(iter(tables[table].values())))
            require(size == row[table], f"it has {size} {table}, where its row says {row[table]}.")
        for table, name in (("nodes", "node"), ("edges", "edge")):
            in_order = np.array_equal(tables[table][name], np.arange(row[table]))
            require(in_order, f"its {table} are out of order.")
        about = _about(manifest, row, tables)
        return _circuit(about, tables["nodes"], tables["edges"], tables["removals"])
    except KeyholeError as error:
        raise KeyholeError(f"the circuit of prompt {row['prompt']} cannot be read: {error}") from error


def _about(manifest: Manifest, row: Row, tables: Mapping[str, Row]) -> About:
    """What a circuit is of, as its file says it."""
    require(isinstance(row["parameters"], str), "it has no parameters.")
    parameters = parse_json(row["parameters"])
    require(isinstance(parameters, dict), "its parameters are no object.")
    about = {
        "model": dict(manifest.model) if row["model"] is None else parse_json(row["model"]),
        "versions": dict(manifest.versions) if row["versions"] is None else parse_json(row["versions"]),
        "parameters": parameters | {name: row[name] for name in OWN},
        "errors": {name: row[f"error_{name}"] for name in ERRORS},
        "token_ids": row["token_ids"],
        "tokens": row["tokens"],
    }
    return read(About, about | ({"measured": _measured(row, tables)} if row.get("baseline") is not None else {}))


def _measured(row: Row, tables: Mapping[str, Row]) -> Row:
    """What was measured of a circuit; what was not has no values at all."""
    require(is_list(row["measured"], str), "what was measured is missing.")
    values: Row = {"words": row["word_effects"]}
    for table, share in (("nodes", "node_shares"), ("edges", "edge_shares")):
        values |= {table: tables[table]["effect"], share: tables[table]["share"]}
    values = {name: numbers if name in row["measured"] else [] for name, numbers in values.items()}
    faithfulness = None if row["kept"] is None else {name: row[column] for column, name in FAITHFULNESS.items()}
    return {name: row[name] for name in MEASURED_OWN} | values | {"faithfulness": faithfulness}


def _circuit(about: About, node: Row, edge: Row, removal: Row) -> Circuit:
    """Its columns as a circuit has them."""
    nodes = Nodes(*(node[name] for name in ("kind", "layer", "head", "dest", "src")))
    through = about["parameters"].get("through") == "mlps"
    if through:
        handed = np.isfinite(node["influence"]).all() and np.isfinite(edge["influence"]).all()
        require(bool(handed), "nodes and edges lack influence, and the circuit goes through MLPs.")
    none = np.full(len(edge["edge"]), np.nan)
    return assembled(
        about,
        nodes=nodes,
        attention=tuple(node["attention"]),
        edges=Edges(
            sender=edge["from_node"],
            receiver=edge["to_node"],
            influence=edge["influence"] if through else none,
            **{name: edge[name] for name in ("side", "weight", "ig", "alone", "channels")},
        ),
        firings=_firings(nodes, node, removal),
        influence=tuple(node["influence"].tolist()) if through else (),
        leaves=tuple(node["leaf"]) if through else (),
        mlps=_mlps(node) if through else Mlps.of(()),
    )


def _explained(node: Row, where: str) -> Int[np.ndarray, "explained"]:
    """The nodes that have a value here, in the order in which they were explained."""
    at = np.nonzero(~np.isnan(node[where]))[0]
    order = node["explained"][at]
    require(bool((order >= 0).all()), "the order of its nodes is missing.")
    return at[np.argsort(order, kind="stable")]


def _firings(nodes: Nodes, node: Row, removal: Row) -> Firings:
    """The firings that were searched, with what was removed, in the order in which they were kept."""
    at = _explained(node, "tau")
    place, side = np.full(len(nodes) + 1, NONE), removal["side"]
    place[at] = np.arange(len(at))  # and the last one, that NONE stands for, of nobody
    firing = place[np.clip(removal["node"], NONE, len(nodes))]
    known = (firing >= 0) & ((side == BOTH[0]) | (side == BOTH[1]))
    require(bool(known.all()), "candidates were removed of a node that is no firing, or of no side.")
    group = 2 * firing + (side == BOTH[1])
    columns = [removal[name] for name in ("kind", "layer", "head", "src", "channel", "ig", "after")]
    if not _ordered(group):
        order = np.argsort(group, kind="stable")
        group, columns = group[order], [column[order] for column in columns]
    firing, of_src = group // 2, group % 2 == 1
    dest = np.where(of_src, nodes.src[at][firing], nodes.dest[at][firing])
    kind, layer, head, *rest = columns
    return Firings(
        node=at,
        tau=node["tau"][at],
        visible=node["visible"][at],
        sizes=np.bincount(group, minlength=2 * len(at)).reshape(-1, 2),
        removals=Removals(kind, layer, head, dest, *rest),
    )


def _mlps(node: Row) -> Mlps:
    """The MLPs that were explained, in the order in which they were kept."""
    at = _explained(node, "kept")
    lists = {name: node[column][at] for name, column in MLP_COLUMNS.items() if name not in SHARES}
    same = np.array_equal(lists["neurons"].sizes, lists["shares"].sizes)
    require(same, "the neurons of an MLP are missing.")
    return Mlps(node=at, **{name: node[name][at] for name in SHARES}, **lists)


def _example(manifest: Manifest, row: Row) -> Example:
    _require_example(row)
    spans = zip(row["role_start"], row["role_end"], strict=True)
    labels = {name: row[f"label_{name}"] for name in manifest.labels}
    return Example(
        **{name: row[name] for name in ("task", "text", "answer", "template", "continuation")},
        answers=tuple(row["answers"]),
        against=tuple(row["against"]),
        roles=dict(zip(row["roles"], spans, strict=True)),
        labels={name: value for name, value in labels.items() if value is not None},
    )


def _require_example(row: Row) -> None:
    """Refuse null where a text or a list should be: another program may have written the table."""
    texts, lists = ("task", "text", "answer", "template", "continuation"), ("answers", "against", "roles")
    good = all(isinstance(row[name], str) for name in texts) and all(is_list(row[name], str) for name in lists)
    spans = [row["role_start"], row["role_end"]]
    good = good and all(is_list(ends, int) and len(ends) == len(row["roles"]) for ends in spans)
    require(good, f"prompt {row['prompt']} cannot be read: its text, answers or roles are missing.")
