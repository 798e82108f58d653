"""Which rows are asked for? Tables over whole parts, read lazily: only the columns and row groups that are needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from keyhole.errors import KeyholeError
from keyhole.store.manifest import Manifest
from keyhole.store.schema import arrow_schema, columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

Where = Union[Mapping[str, Any], "pc.Expression", None]  # values by column (a list: any of these), or an expression


def read_table(
    root: Path, manifest: Manifest, table: str, numbers: Sequence[int], names: Sequence[str] | None, where: Where
) -> "pa.Table":
    """The rows of a table in some parts, in their order."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    for name in names or ():
        _require_column(manifest, table, name)
    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    paths = [str(root / table / f"{manifest.name(number)}.parquet") for number in numbers]
    schema = arrow_schema(manifest, table)
    if not paths:
        return schema.empty_table().select(list(names or schema.names))
    files = ds.dataset(paths, schema=schema, format=ds.ParquetFileFormat(default_fragment_scan_options=checked))
    try:
        return files.to_table(columns=None if names is None else list(names), filter=_filter(manifest, table, where))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise KeyholeError(f"{table} has no rows such that {where}: {error}.") from error
    except OSError as error:
        raise KeyholeError(f"{table} in {root} is damaged: {error}.") from error


def _filter(manifest: Manifest, table: str, where: Where) -> "pc.Expression | None":
    import pyarrow.compute as pc

    if not isinstance(where, Mapping):
        return where
    found: pc.Expression | None = None
    for name, value in where.items():
        _require_column(manifest, table, name)
        own = pc.field(name)
        if value is None:
            term = own.is_null()
        else:
            term = own.isin(list(value)) if isinstance(value, list | tuple | set | range) else own == value
        found = term if found is None else found & term
    return found


def _require_column(manifest: Manifest, table: str, name: str) -> None:
    known = columns(manifest, table)
    if name not in known:
        raise KeyholeError(f"{table} has no column {name!r}: it has {', '.join(known)}.")
