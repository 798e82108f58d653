"""How do rows become a Parquet file? Typed, finite and in range, or refused; the same rows give the same bytes."""

from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.store.manifest import Manifest
from keyhole.store.rows import Rows
from keyhole.store.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


def table_of(manifest: Manifest, table: str, rows: Rows) -> "pa.Table":
    """A table's rows as pyarrow has them. What a column cannot hold is refused, not wrapped or rounded to nothing."""
    import pyarrow as pa

    schema = arrow_schema(manifest, table)
    made = []
    for column in schema:
        try:
            made.append(pa.array(rows[column.name], column.type))
        except (pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError) as error:
            raise KeyholeError(f"column {column.name} of {table} cannot hold what was found: {error}.") from error
        _require_sound(table, column.name, rows, made[-1])
    return pa.table(made, schema=schema)


def parquet_of(table: "pa.Table") -> bytes:
    """A table as a Parquet file, with checksums inside and no date.

    Floats are split into streams of bytes, which compress better than numbers that never repeat; all else, which
    repeats, into dictionaries.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = [_path(column) for column in table.schema if pa.types.is_floating(_inside(column.type))]
    others = [_path(column) for column in table.schema if not pa.types.is_floating(_inside(column.type))]
    out = pa.BufferOutputStream()
    pq.write_table(
        table,
        out,
        compression="zstd",
        use_dictionary=others,
        use_byte_stream_split=floats,
        write_page_checksum=True,
    )
    return bytes(out.getvalue())


def _require_sound(table: str, name: str, rows: Rows, made: "pa.Array") -> None:
    """All numbers of a store are finite, and its integers count or number something."""
    import pyarrow as pa
    import pyarrow.compute as pc

    nested = pa.types.is_list(made.type) or pa.types.is_fixed_size_list(made.type)
    flat = pc.list_flatten(made) if nested else made
    if pa.types.is_floating(flat.type):
        sound, told = pc.is_finite(flat), "finite numbers"
    elif pa.types.is_integer(flat.type):
        sound, told = pc.greater_equal(flat, pa.scalar(0, flat.type)), "numbers from 0"
    else:
        return
    at = pc.index(sound, pa.scalar(False)).as_py()
    if at >= 0:
        row = pc.list_parent_indices(made)[at].as_py() if nested else at
        raise KeyholeError(f"{name} of {table} holds {told}, but prompt {rows['prompt'][row]} has {flat[at].as_py()}.")


def _inside(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) else kind


def _path(column: "pa.Field") -> str:
    """What Parquet calls a column: the elements of a list are a level of their own."""
    return str(column.name) if _inside(column.type) == column.type else f"{column.name}.list.element"
