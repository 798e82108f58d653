"""How are trained weights kept, so that a stop leaves the old file or the new one, never half of one?"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch


def store(parts: dict[str, Any], path: Path) -> None:
    """Write aside, flush to disk, rename."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            torch.save(parts, out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
