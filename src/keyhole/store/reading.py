"""Which rows are asked for? Tables over complete parts, read lazily: the columns and row groups that are needed."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from keyhole.errors import KeyholeError
from keyhole.store.manifest import Manifest
from keyhole.store.schema import arrow_schema, columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds


# What rows should have, by column: a value, None for a missing one, or a list, of which any; or pyarrow's own.
AGAIN = "Run the command that made it again: it keeps what is whole, and makes the rest."
Where = Union[Mapping[str, Any], "pc.Expression", None]


def dataset(root: Path, manifest: Manifest, table: str, numbers: Sequence[int]) -> "ds.Dataset":
    """A table over some parts, in their order; what is read of it is checked against the checksums of its pages."""
    import pyarrow.dataset as ds

    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    paths = [str(root / table / f"{manifest.name(number)}.parquet") for number in numbers]
    format_ = ds.ParquetFileFormat(default_fragment_scan_options=checked)
    return ds.dataset(paths, schema=arrow_schema(manifest, table), format=format_)


def rows_in(found: "ds.Dataset", table: str, names: Sequence[str] | None, where: "pc.Expression | None") -> "pa.Table":
    """These columns of the rows that are asked for."""
    import pyarrow as pa

    require_columns(table, found.schema.names, names or ())
    try:
        asked = found.scanner(columns=None if names is None else list(names), filter=where)
    except (pa.ArrowException, TypeError) as error:
        raise KeyholeError(f"{table} cannot be asked for {where}: {error}.") from error
    try:
        return asked.to_table()
    except (pa.ArrowException, OSError) as error:
        raise KeyholeError(f"the table {table} is damaged: {' '.join(str(error).split())}. {AGAIN}") from error


def split(manifest: Manifest, table: str, where: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is asked of a table's own columns, and what of `prompts`."""
    own, shared = columns(manifest, table), columns(manifest, "prompts")
    require_columns(table, [*own, *shared], where)
    return (
        {name: value for name, value in where.items() if name in own},
        {name: value for name, value in where.items() if name not in own},
    )


def require_columns(table: str, known: Sequence[str], names: Iterable[str]) -> None:
    """Refuse a column that a table has not."""
    for name in names:
        if name not in known:
            raise KeyholeError(f"{table} has no column {name!r}: it has {', '.join(dict.fromkeys(known))}.")


def expression(where: Mapping[str, Any], also: "pc.Expression | None" = None) -> "pc.Expression | None":
    """Values by column as one expression; True of all rows: None."""
    import pyarrow.compute as pc

    for name, value in where.items():
        own = pc.field(name)
        several = isinstance(value, list | tuple | set | frozenset | range)
        term = own.is_null() if value is None else own.isin(list(value)) if several else own == value
        also = term if also is None else also & term
    return also
