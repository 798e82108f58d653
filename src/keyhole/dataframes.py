"""How does a result become a table of another tool? A pandas DataFrame or, where pandas is not installed, records."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

Table = Any  # a pandas DataFrame, or a list of records


def as_dataframe(records: Sequence[dict[str, Any]]) -> Table:
    """One row per record, one column per name."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        return list(records)
    return pandas.DataFrame.from_records(records)
