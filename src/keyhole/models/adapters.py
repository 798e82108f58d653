"""How does an adapter come onto its base model? PEFT's folder, beside a base that is given or that it names.

The adapter is not merged: its layers stay, and can be switched. What they make of a projection's weight is read by
`effective.py`. An adapter that does not fit is refused here; PEFT would leave what it lacks at random numbers.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from transformers.integrations import peft as integration
from transformers.models.auto import auto_factory

from keyhole.errors import KeyholeError
from keyhole.files import is_file, is_folder, user_path
from keyhole.models.stored import device_of, is_adapted, offload_hook
from keyhole.strict import parse_json, read_text, shortened

_CONFIG = "adapter_config.json"
_NAME = "default"  # of the adapter, as PEFT calls a single one
WITH = " with "  # between a base and an adapter, in the name of a model


def is_adapter(path: Path) -> bool:
    """Is this a folder with an adapter and no model beside it?"""
    return is_folder(path) and is_file(path / _CONFIG) and not is_file(path / "config.json")


def adapter_folder(adapter: str | Path) -> Path:
    """The folder of an adapter, or an error that says what is missing."""
    path = user_path(adapter)
    if not is_folder(path) or not is_file(path / _CONFIG):
        raise KeyholeError(f"{shortened(str(adapter))} is no adapter: it is no folder with an {_CONFIG}.")
    return path


def named_adapter(name: str) -> tuple[str, str] | None:
    """The base and the adapter of a name such as "gpt2 with my-lora"; None: it is no such name.

    >>> named_adapter("gpt2") is None, named_adapter("gone with the wind") is None
    (True, True)
    """
    base, joint, adapter = name.rpartition(WITH)
    return (base, adapter) if joint and base and is_file(user_path(adapter) / _CONFIG) else None


def base_of(folder: Path) -> str:
    """The base model that an adapter names: of the hub, or a path as it is written, or one beside the adapter."""
    try:
        config = parse_json(read_text(folder / _CONFIG))
    except KeyholeError as error:
        raise KeyholeError(f"{folder / _CONFIG} cannot be read: {error}") from error
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(base, str) or not base:
        raise KeyholeError(
            f"the adapter {folder} names no base model: give it, as keyhole.load(BASE, adapter=FOLDER) or --model BASE "
            "--adapter FOLDER."
        )
    beside = folder / base
    return str(beside) if not user_path(base).exists() and beside.exists() else base


def with_adapter(hf: Any, folder: Path, name: str) -> Any:
    """The base model with an adapter's layers in place, none of them merged."""
    peft = _peft()
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        require_readable(config, str(folder))
        config.inference_mode = True
        wrapped = peft.PeftModel(hf, config, adapter_name=_NAME)
        _follow_offloaded(hf)
        weights = peft.load_peft_weights(str(folder), device="cpu")
        report = peft.set_peft_model_state_dict(wrapped, weights, adapter_name=_NAME)
    except KeyholeError:
        raise
    except Exception as error:  # PEFT raises everything from KeyError to RuntimeError, in one line or in hundreds
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
        reason = lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]
        raise KeyholeError(f"the adapter {folder} does not fit {name}: {shortened(reason, 200)}") from error
    missing = sorted(key for key in report.missing_keys if f".{_NAME}" in key)
    for problem, keys in (("has no weights for", missing), ("has weights for", sorted(report.unexpected_keys))):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            other = "" if keys is missing else ", which the model has not"
            raise KeyholeError(f"the adapter {folder} does not fit {name}: it {problem} {keys[0]}{more}{other}.")
    return wrapped.get_base_model().eval()


def without_wrapper(model: Any) -> Any:
    """The Hugging Face model inside PEFT's wrapper, with its adapters in place; anything else as it is."""
    configs = getattr(model, "peft_config", None)
    if isinstance(configs, dict):
        for config in configs.values():
            require_readable(config, type(model).__name__)
    return model.get_base_model() if isinstance(configs, dict) and hasattr(model, "get_base_model") else model


def require_readable(config: Any, name: str) -> None:
    """Refuse adapters that change no projection: learned prompts and prefixes are tokens that no prompt has."""
    if config.is_prompt_learning or getattr(config, "is_adaption_prompt", False):
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        raise KeyholeError(
            f"{name} is an adapter of type {kind}, which adds tokens or keys of its own instead of changing weights: "
            "Keyhole reads LoRA, DoRA and others that change projections."
        )


def _follow_offloaded(hf: Any) -> None:
    """Make room for adapters of offloaded projections where these compute: PEFT makes them empty, as these are."""
    for module in hf.modules():
        base = getattr(module, "base_layer", None)
        if is_adapted(module) and base is not None and offload_hook(base) is not None:
            place = device_of(base)
            for name, child in module.named_children():
                if name != "base_layer":
                    child.to_empty(device=place)


@contextmanager
def no_adapters_beside() -> Iterator[None]:
    """Within this context transformers loads a folder's model alone, whether or not PEFT is installed.

    A folder may hold a merged model and, still, the adapter that was merged into it: transformers would apply that
    once more.
    """
    with ExitStack() as stack:
        for module in (integration, auto_factory):
            before = getattr(module, "is_peft_available", None)
            if before is not None:
                module.is_peft_available = lambda: False  # type: ignore[attr-defined]
                stack.callback(setattr, module, "is_peft_available", before)
        yield


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise KeyholeError("reading an adapter needs one more package: pip install 'keyhole[adapters]'.") from error
    return peft
