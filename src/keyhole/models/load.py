"""Where does a model come from? The organism, the hub, a folder, a GGUF file, or the user's own hands."""

import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import huggingface_hub
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from keyhole.errors import KeyholeError
from keyhole.models.model import Model, make_model

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)

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
    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    if not _hub_reachable():  # huggingface_hub would retry for half a minute before it looks into its cache
        options["local_files_only"] = True
    return str(source), options


def _pretrained(path: Any, *, name: str, dtype: Any, device_map: Any, **options: Any) -> Model:
    if "gguf_file" in options:
        _require_gguf()
    try:
        hf = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, device_map=device_map, **options)
    except Exception as error:  # transformers raises everything from OSError to RuntimeError here
        if options.get("local_files_only"):
            raise KeyholeError(
                f"cannot load {name}: the hub is unreachable and the model is not cached here."
            ) from error
        raise KeyholeError(f"cannot load {name}: {_first_line(error)}") from error
    return make_model(hf, _tokenizer(path, options), name)


def _tokenizer(path: Any, options: dict[str, Any]) -> Any:
    """The model's tokenizer; None if it has none, so that prompts must be token ids."""
    if isinstance(path, Path) and "gguf_file" not in options and not _has_tokenizer(path):
        return None
    try:
        return AutoTokenizer.from_pretrained(path, **options)
    except Exception:  # as many kinds as above; a folder of weights alone is a legitimate model
        return None


def _has_tokenizer(folder: Path) -> bool:
    """Are there tokenizer files? Without any, AutoTokenizer makes up an empty tokenizer of the model's type."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def _hub_reachable() -> bool:
    if urllib.request.getproxies():  # behind a proxy, names need not resolve here
        return True
    try:
        socket.getaddrinfo(urlparse(huggingface_hub.constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _require_gguf() -> None:
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise KeyholeError("reading a .gguf file needs more packages: pip install 'keyhole[gguf]'.") from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
