"""What has been measured so far? Results as a file that survives a stop in the middle of anything."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from keyhole.errors import KeyholeError
from keyhole.lab.outcome import Verdict

State = Verdict | Literal["failed", "schematic"]
STATES: tuple[State, ...] = ("reproduced", "partly", "not", "needs a model", "later", "failed", "schematic")
_VERSION = 1


@dataclass(frozen=True)
class Result:
    """One published item: how it came out, or why it did not run."""

    id: str
    state: State
    measured: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[str, ...] = ()  # relative to the folder of the results
    note: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Was something measured? Everything else is worth another try."""
        return self.state != "failed" and bool(self.measured)


def read_results(folder: Path) -> dict[str, Result]:
    """The results of a folder by id; none if there is no file."""
    path = folder / "results.json"
    if not path.is_file():
        return {}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["version"] != _VERSION:
            raise KeyholeError(f"{path} has version {told['version']}, not {_VERSION}: choose another folder.")
        return {id: Result(id=id, **{**one, "figures": tuple(one["figures"])}) for id, one in told["results"].items()}
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise KeyholeError(f"{path} is no file of results ({error}): remove it or choose another folder.") from error


def write_results(results: Mapping[str, Result], folder: Path) -> Path:
    """All results in one file, replaced at once: a reader never sees half of it."""
    path = folder / "results.json"
    told = {id: {name: value for name, value in asdict(one).items() if name != "id"} for id, one in results.items()}
    draft = path.with_name("results.json.part")
    text = json.dumps(_finite({"version": _VERSION, "results": told}), ensure_ascii=False, indent=1, allow_nan=False)
    draft.write_text(text + "\n", encoding="utf-8")
    os.replace(draft, path)
    return path


def _finite(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
