"""How are trained weights kept, so that a stop leaves the old file or the new one, never half of one?"""

from pathlib import Path
from typing import Any

import torch

from keyhole.files import replacing


def store(parts: dict[str, Any], path: Path) -> None:
    """Tensors and numbers by name, in one file."""
    with replacing(path) as out:
        torch.save(parts, out)
