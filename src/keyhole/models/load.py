"""Where does a model come from? The organism, the hub, a folder, a GGUF file, or the user's own hands."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from keyhole.errors import KeyholeError
from keyhole.models.model import Model, make_model

Source = str | Path | tuple[Any, Any]


def load(
    source: Source | None = None,
    *,
    revision: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: str | torch.device | None = None,
    device_map: Any = None,
) -> Model:
    """Load a model that Keyhole can read.

    `source`: nothing (the built-in organism), a hub name such as "gpt2" (with `revision=` for a checkpoint), a
    local folder, a `.gguf` file, or a pair (hf_model, tokenizer or None). Weights are loaded in float32 unless
    `dtype` says otherwise ("auto": as stored), because rounding in half precision is far above 1e-4.
    """
    if isinstance(source, tuple):
        return _given(source, device)
    if source is None:
        from keyhole.models.organism import folder

        path: Path = folder()
        model = _pretrained(path, name="organism", dtype=dtype, device_map=device_map)
    else:
        path, options = _resolve(source, revision)
        model = _pretrained(path, name=str(source), dtype=dtype, device_map=device_map, **options)
    return model if device is None else make_model(model.hf.to(device), model.tokenizer, model.name)


def _given(pair: tuple[Any, Any], device: Any) -> Model:
    if len(pair) != 2 or not isinstance(pair[0], transformers.PreTrainedModel):
        raise KeyholeError("a model given by hand must be a pair (hf_model, tokenizer or None).")
    hf, tokenizer = pair
    name = hf.config.name_or_path or type(hf).__name__
    return make_model(hf if device is None else hf.to(device), tokenizer, name)


def _resolve(source: str | Path, revision: str | None) -> tuple[Any, dict[str, Any]]:
    """The path or hub name to load from, and what else transformers needs to know."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise KeyholeError(f"there is no file {source}.")
        return path.parent, {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise KeyholeError(f"the folder {source} is no model: it has no config.json.")
        return path, {}
    if path.is_file() or len(path.parts) > 2 or str(source).startswith((".", "~", "/")):
        raise KeyholeError(f"{source} is neither a model folder nor a .gguf file.")
    return str(source), {} if revision is None else {"revision": revision}


def _pretrained(path: Any, *, name: str, dtype: Any, device_map: Any, **options: Any) -> Model:
    if "gguf_file" in options:
        _require_gguf()
    try:
        hf = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, device_map=device_map, **options)
    except Exception as error:  # transformers raises everything from OSError to RuntimeError here
        raise KeyholeError(f"cannot load {name}: {_first_line(error)}") from error
    return make_model(hf, _tokenizer(path, options), name)


def _tokenizer(path: Any, options: dict[str, Any]) -> Any:
    """The model's tokenizer; None if it has none, so that prompts must be token ids."""
    try:
        return AutoTokenizer.from_pretrained(path, **options)
    except Exception:  # as many kinds as above; a folder of weights alone is a legitimate model
        return None


def _require_gguf() -> None:
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise KeyholeError("reading a .gguf file needs more packages: pip install 'keyhole[gguf]'.") from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
