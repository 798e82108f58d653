"""What --names means: a file of names, refused before any work is done if it is of another model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit, Edge
    from keyhole.models.run import Run
    from keyhole.naming.named import Naming


def read(path: Path | None, every: bool, *, json: bool) -> Naming | None:
    """The names; None: none were given."""
    if path is None:
        if every:
            raise KeyholeError("--all-names says which of --names to show: give a file of names.")
        return None
    if json:
        raise KeyholeError("names are for texts and pages; with --json a circuit is as its file has it: leave one out.")
    from keyhole.naming.attached.files import load_naming

    return load_naming(path)


def require(naming: Naming, run: Run) -> None:
    """Refuse names of other weights."""
    from keyhole.naming.attached.edges import require_same_model

    require_same_model(naming, {"name": run.model.name, "fingerprint": run.model.fingerprint()})


def edges(circuit: Circuit, naming: Naming, every: bool) -> dict[Edge, str]:
    """The names of a circuit's edges."""
    from keyhole.naming.attached.edges import edge_names

    return edge_names(circuit, naming, every=every)
