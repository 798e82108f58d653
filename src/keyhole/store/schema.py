"""Which columns has a store? Flat and typed, the same in every part; `docs/store.md` says what each means.

Integers are as small as fits, and what does not fit is refused rather than wrapped. Texts that repeat are encoded as
dictionaries inside the files; readers see plain texts.
"""

from typing import TYPE_CHECKING

from keyhole.store.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("prompts", "circuits", "nodes", "edges", "removals")
SIGNALS = "signals"
PLACE = {"kind": "string", "layer": "int16", "head": "int16", "dest": "int32", "src": "int32"}

_COLUMNS: dict[str, dict[str, str]] = {
    "prompts": {
        "prompt": "int64",
        "status": "string",
        "error": "string",
        "correct": "bool",
        "predicted": "string",
        "probability": "double",
        "difference": "double",
        "task": "string",
        "text": "string",
        "answer": "string",
        "answers": "list<string>",
        "against": "list<string>",
        "template": "string",
        "continuation": "string",
        "roles": "list<string>",
        "role_start": "list<int32>",
        "role_end": "list<int32>",
    },
    "circuits": {
        "prompt": "int64",
        "nodes": "int32",
        "edges": "int32",
        "heads": "int32",
        "firings": "int32",
        "mlps": "int32",
        "removals": "int32",
        "ends_words": "double",
        "ends_heads": "double",
        "ends_mlps": "double",
        "ends_mixers": "double",
        "ends_constants": "double",
        "token_ids": "list<int32>",
        "tokens": "list<string>",
        "end": "int32",
        "target_ids": "list<int32>",
        "target_text": "list<string>",
        "target_probability": "list<double>",
        "against_ids": "list<int32>",
        "against_text": "list<string>",
        "against_probability": "list<double>",
        "error_scores": "double",
        "error_residuals": "double",
        "error_logits": "double",
        "parameters": "string",
        "model": "string",
        "versions": "string",
    },
    "nodes": {
        "prompt": "int64",
        "node": "int32",
        **PLACE,
        "dest_token": "string",
        "src_token": "string",
        "attention": "double",
        "influence": "double",
        "leaf": "string",
        "explained": "int32",
        "tau": "double",
        "visible": "int32",
        "offset": "double",
        "left": "double",
        "left_renormed": "double",
        "kept": "double",
        "cancellation": "double",
        "causes": "list<int32>",
        "neurons": "list<int32>",
        "neuron_shares": "list<double>",
    },
    "edges": {
        "prompt": "int64",
        "edge": "int32",
        "from_node": "int32",
        **{f"from_{name}": kind for name, kind in PLACE.items()},
        "to_node": "int32",
        **{f"to_{name}": kind for name, kind in PLACE.items()},
        "side": "string",
        "weight": "double",
        "ig": "double",
        "alone": "double",
        "influence": "double",
        "channels": "list<int16>",
    },
    "removals": {
        "prompt": "int64",
        "node": "int32",
        "side": "string",
        **PLACE,
        "channel": "int16",
        "ig": "double",
        "after": "double",
    },
    SIGNALS: {"prompt": "int64", "edge": "int32", "vector": "vector"},
}

MEASURED = {"effect": "double", "share": "double"}  # of nodes and edges; null: not measured
_MEASURED: dict[str, dict[str, str]] = {  # columns of stores whose circuits were measured
    "circuits": {
        "baseline": "string",
        "metric": "string",
        "everything": "double",
        "nothing": "double",
        "completeness": "double",
        "measured": "list<string>",
        "word_effects": "list<double>",
        "note": "string",
        "kept": "double",
        "cut": "double",
        "rest": "list<double>",
        "random": "list<double>",
        "rank": "int32",
        "kept_edges": "int32",
        "model_edges": "int64",
        "others": "list<double>",
    },
    "nodes": MEASURED,
    "edges": MEASURED,
}


def tables(manifest: Manifest) -> tuple[str, ...]:
    """The tables of a store."""
    return TABLES if manifest.signals is None else (*TABLES, SIGNALS)


def columns(manifest: Manifest, table: str) -> dict[str, str]:
    """A table's columns and their types; every label is a column of its own, and so is what was measured."""
    labels = {f"label_{name}": "string" for name in manifest.labels} if table == "prompts" else {}
    measured = _MEASURED.get(table, {}) if manifest.measured else {}
    return _COLUMNS[table] | measured | labels


def arrow_schema(manifest: Manifest, table: str) -> "pa.Schema":
    """A table's schema, as pyarrow has it."""
    import pyarrow as pa

    plain = {"string": pa.string(), "bool": pa.bool_(), "double": pa.float64()}
    types = plain | {"int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
    types |= {f"list<{name}>": pa.list_(kind) for name, kind in types.items()}
    types["vector"] = pa.list_(pa.float32(), manifest.signals or 0)
    return pa.schema([(name, types[kind]) for name, kind in columns(manifest, table).items()])
