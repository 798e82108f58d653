"""Where does a model come from, and onto which device? The hub, a folder, a file, or another tool."""

import copy
import socket
import urllib.request
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import huggingface_hub
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.files import is_file, is_folder, user_path
from keyhole.models.adapters import (
    WITH,
    adapter_folder,
    base_of,
    is_adapter,
    named_adapter,
    no_adapters_beside,
    with_adapter,
    without_wrapper,
)
from keyhole.models.families import FAMILIES
from keyhole.models.gguf import Opened, open_gguf, quiet_libraries
from keyhole.models.memory import read_memory
from keyhole.models.model import Model, make_model
from keyhole.models.numbers import pass_tolerance
from keyhole.models.organism import NAME, folder, source_named
from keyhole.strict import shortened


def require_device(device: str | torch.device) -> torch.device:
    """The device of that name, refused here rather than in the middle of long work."""
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        unknown = str(error).startswith("Expected one of")  # followed by two lines of names
        reason = "torch knows no such device" if unknown else str(error).splitlines()[0].rstrip(".")
        raise KeyholeError(f"cannot compute on {str(device)!r}: {reason}. Leave it out to use the CPU.") from error
    if place.type == "meta":
        raise KeyholeError("cannot compute on 'meta': it holds no numbers. Leave it out to use the CPU.")
    return place


# Which Hugging Face model is inside one of nnsight or TransformerLens? They are recognised by their attributes, and
# neither package is imported.
#
# nnsight keeps it unchanged (`_module`). TransformerLens' bridge (`original_model`, from version 3 on) puts modules of
# its own between those of the model. A copy without them shares all weights and must give the bridge's logits. Older
# HookedTransformers contain no Hugging Face model, and their weights are folded and centred.

Pair = tuple[Any, Any]  # a Hugging Face model and a tokenizer, or none
_WRAPPED = "_original_component"  # what a module of the bridge stands for
_IDS = (1, 2, 3, 5, 8)  # a short prompt to compare answers on


def unwrapped(source: object) -> Pair:
    """The pair (Hugging Face model, tokenizer) inside a model of another library, or an error with the reason."""
    inside, tokenizer = getattr(source, "_module", None), getattr(source, "tokenizer", None)
    if isinstance(inside, transformers.PreTrainedModel):
        if any(parameter.is_meta for parameter in inside.parameters()):
            raise KeyholeError("this nnsight model has not loaded its weights yet: make it with dispatch=True.")
        return inside, tokenizer
    inside = getattr(source, "original_model", None)
    if isinstance(inside, transformers.PreTrainedModel):
        return _without_bridges(source, inside), tokenizer
    kinds = {kind.__name__ for kind in type(source).__mro__}
    if "HookedTransformer" in kinds:
        raise KeyholeError(
            "a HookedTransformer has no Hugging Face model inside, and its weights are folded and centred: give "
            "keyhole.load the model's name, or a pair (hf_model, tokenizer)."
        )
    if isinstance(without_wrapper(source), transformers.PreTrainedModel):
        raise KeyholeError("a model given by hand must be a pair (hf_model, tokenizer or None).")
    raise KeyholeError(
        f"a {type(source).__name__} is no model that can be loaded: give a name, a folder, a .gguf file, a pair "
        "(hf_model, tokenizer), or a model of nnsight or TransformerLens."
    )


def _without_bridges(bridge: Any, inside: Any) -> Any:
    hf = _plain(inside)
    ids = torch.tensor([_IDS], device=inside.device)
    with torch.no_grad():
        ours, its = (model(ids) for model in (hf, bridge))
        ours, its = (torch.log_softmax(getattr(out, "logits", out).double(), -1) for out in (ours, its))
    if not float((ours - its).abs().max()) <= 10 * pass_tolerance(inside.dtype) * float(its.abs().max()):
        raise KeyholeError(
            "the Hugging Face model inside this bridge does not give the bridge's answers, for its weights were "
            "changed (enable_compatibility_mode folds them): give keyhole.load the model's name, or a pair (hf_model, "
            "tokenizer)."
        )
    return hf


def _plain(module: nn.Module) -> nn.Module:
    """A copy without the bridge's modules and hooks; weights and buffers are the same tensors."""
    while isinstance(getattr(module, _WRAPPED, None), nn.Module):
        module = getattr(module, _WRAPPED)
    if hasattr(module, "_hf_hook"):
        raise KeyholeError(
            "the model inside this bridge is spread over devices or a disk by accelerate, and cannot be taken out: "
            "give keyhole.load the model's name."
        )
    plain = copy.copy(module)
    for name, value in vars(module).items():
        if "_hooks" in name and isinstance(value, dict):
            plain.__dict__[name] = type(value)()
    children = module._modules.items()
    plain.__dict__["_modules"] = {name: child if child is None else _plain(child) for name, child in children}
    return plain


# Where does a model come from? The organism, the hub, a folder, a GGUF file, or objects that the user has loaded.

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)

# Explicit, because without it transformers asks on standard input whether to run the code that a model comes with.
_OWN_CODE = {"trust_remote_code": False}

Source = str | Path | tuple[Any, Any]


def load(
    source: Source | object | None = None,
    *,
    revision: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: str | torch.device | None = None,
    device_map: Any = None,
    adapter: str | Path | None = None,
    memory: int | str | None = None,
) -> Model:
    """Load a model that Keyhole can read.

    Args:
        source: Nothing (the built-in organism), a hub name such as "gpt2", a local folder, a `.gguf` file, a pair
            (hf_model, tokenizer or None), or a model of nnsight or of TransformerLens' bridge, whose Hugging Face
            model is taken. A folder with a PEFT adapter names its base model, which is loaded with it; the
            hf_model of a pair may be quantised, or a `PeftModel`.
        revision: Which revision of a hub model, for checkpoints.
        dtype: The numbers to compute with: float32 by default, "auto" as the weights are stored. Half precision rounds
            so coarsely that many models are refused in it.
        device: Where to put the model, such as "cuda". Default: where it was loaded.
        device_map: As transformers takes it, for a model that is spread over several devices, the CPU or a disk.
        adapter: A folder with a PEFT adapter (such as LoRA) of the model. It is applied without being merged.
        memory: How much memory folded weights may take while prompts are traced, in bytes or such as "8GB". Layers
            that were used longest ago are folded again when they are needed. Default: no limit.

    Returns:
        A `Model`: `model.run("a prompt")` is what to do with it.

    A `.gguf` file takes long to read. Its converted weights and tokenizer are kept in the user's cache folder (the
    environment variable KEYHOLE_CACHE names another one, or none if it is empty), where the next call finds them.

    >>> import keyhole
    >>> model = keyhole.load()
    >>> model.dims.layers, model.dims.heads
    (4, 8)
    """
    most = None if memory is None else read_memory(memory)
    if source is not None and not isinstance(source, str | Path | tuple):
        source = unwrapped(source)
    if isinstance(source, tuple):
        if revision is not None or device_map is not None or dtype != torch.float32 or adapter is not None:
            raise KeyholeError(
                "a model in hand is taken as it is: revision, dtype, device_map and adapter do not apply."
            )
        return replace(_given(source, device), memory=most)
    source, adapter, label = _with_adapter_named(source, adapter)
    if source is None:
        path, options = folder(), dict[str, Any]()
    else:
        path, options = _resolve(source, revision)
    if revision is not None and "revision" not in options:
        raise KeyholeError(f"revision {revision!r} applies to models from the hub, not to {source or 'the organism'}.")
    name = NAME if source is None else str(source)
    if label == str(adapter):  # which names its base
        name = f"{name} (the base model of {adapter})"
    if device is not None and device_map is not None:
        raise KeyholeError("device puts a whole model somewhere, and device_map its parts: give one of them.")
    read = partial(_read, name=name, device_map=device_map)
    with quiet_libraries():
        if "gguf_file" in options:
            _require_gguf()
            whole_here = device_map is None  # what is spread over devices or disk is not kept
            hf, tokenizer, problem = open_gguf(path / options["gguf_file"], dtype, read, keep=whole_here)
        else:
            hf, tokenizer, problem = read(path, dtype=dtype, **options)
        if adapter is not None:
            hf = with_adapter(hf, adapter_folder(adapter), name)
    return replace(make_model(_placed(hf, device), tokenizer, label or name), tokenizer_problem=problem, memory=most)


def _read(path: Any, *, name: str, dtype: Any, device_map: Any, **options: Any) -> Opened:
    """What transformers finds in a folder, in a GGUF file or on the hub."""
    return _pretrained(path, name=name, dtype=dtype, device_map=device_map, **options), *_tokenizer(path, options)


def _given(pair: tuple[Any, Any], device: Any) -> Model:
    hf, tokenizer = (without_wrapper(pair[0]), pair[1]) if len(pair) == 2 else (None, None)
    if not isinstance(hf, transformers.PreTrainedModel):
        raise KeyholeError("a model given by hand must be a pair (hf_model, tokenizer or None).")
    name = hf.config.name_or_path or type(hf).__name__
    return make_model(_placed(hf, device), tokenizer, name)


def _placed(hf: Any, device: Any) -> Any:
    """The model on a device, or an error that says why it cannot be there."""
    try:
        return hf if device is None else hf.to(device)
    except (RuntimeError, AssertionError, ValueError) as error:  # ValueError: quantised ones stay where they are
        raise KeyholeError(f"cannot put the model on {device!r}: {_first_line(error)}") from error


def _resolve(source: str | Path, revision: str | None) -> tuple[Any, dict[str, Any]]:
    """The path or hub name to load from, and what else transformers needs to know."""
    path = user_path(source)
    if path.suffix == ".gguf":
        if not is_file(path):
            raise KeyholeError(f"there is no file {shortened(str(source))}.")
        return path.parent, {"gguf_file": path.name}
    if is_folder(path):
        if not is_file(path / "config.json"):
            raise KeyholeError(f"the folder {source} is no model: it has no config.json.")
        return path, {}
    if is_file(path) or len(path.parts) > 2 or str(source).startswith((".", "~", "/")):
        raise KeyholeError(f"{shortened(str(source))} is neither a model folder nor a .gguf file.")
    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    if not _hub_reachable():  # huggingface_hub would retry for half a minute before it looks into its cache
        options["local_files_only"] = True
    return str(source), options


def _with_adapter_named(
    source: str | Path | None, adapter: str | Path | None
) -> tuple[str | Path | None, str | Path | None, str | None]:
    """(base, adapter, what the model is called): as given, by a name of both, or by an adapter that names its base."""
    if isinstance(source, str) and (named := named_adapter(source)) is not None:
        adapter = named[1] if adapter is None else adapter
        return source_named(named[0]), adapter, f"{named[0]}{WITH}{adapter}"
    alone = source if source is not None else adapter
    if alone is not None and is_adapter(user_path(alone)) and (source is None or adapter is None):
        base = base_of(user_path(alone))
        if not user_path(base).exists() and (len(Path(base).parts) > 2 or base.startswith((".", "~", "/"))):
            raise KeyholeError(
                f"the adapter {alone} changes the model {shortened(base)}, which is not there: give its base, as "
                "keyhole.load(BASE, adapter=FOLDER) or --model BASE --adapter FOLDER."
            )
        return base, alone, str(alone)
    if source is not None and is_adapter(user_path(source)):
        raise KeyholeError(f"{source} is an adapter itself: adapter={str(adapter)!r} needs the base model of both.")
    if adapter is None:
        return source, None, None
    return source, adapter, f"{NAME if source is None else source}{WITH}{adapter_folder(adapter)}"


def _require_decoder(config: Any, name: str) -> None:
    """Refuse encoders by what they are; loaded as a decoder, they would lack weights or attend in one direction."""
    kind = config.model_type
    if kind in FAMILIES or not (config.is_encoder_decoder or kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES):
        return
    described = "encoder-decoder models" if config.is_encoder_decoder else "encoders"
    raise KeyholeError(
        f"cannot load {name}: it is of type {kind!r}, and {described} are not supported. Keyhole reads decoders, which "
        "predict the next token: give one such as gpt2."
    )


def _pretrained(path: Any, *, name: str, dtype: Any, device_map: Any, **options: Any) -> Any:
    try:
        # offline, transformers would ask the hub for an adapter of that name again and again
        here = isinstance(path, Path) or options.get("local_files_only", False)
        with no_adapters_beside() if here else nullcontext():
            hf, report = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, device_map=device_map, output_loading_info=True, **_OWN_CODE, **options
            )
    except Exception as error:  # transformers raises everything from OSError to RuntimeError here
        reason = _first_line(error)
        if "Unrecognized configuration class" in reason:  # transformers has no decoder of this type
            with suppress(OSError, ValueError):
                _require_decoder(AutoConfig.from_pretrained(path, **_OWN_CODE, **options), name)
        if "trust_remote_code" in str(error):
            raise KeyholeError(
                f"cannot load {name}: it comes with code of its own, and Keyhole runs none that is not part of "
                "transformers. Give a model of an architecture that transformers has."
            ) from error
        if isinstance(path, Path) or not isinstance(error, OSError):  # the hub's refusals are OSErrors
            raise KeyholeError(f"cannot load {name}: {reason}") from error
        if options.get("local_files_only"):
            reason = "the hub is unreachable and the model is not cached here. A folder or a file is given by its path."
        raise MissingModelError(f"cannot load {name}: {reason}") from error
    if isinstance(device_map, dict):
        _require_parts(hf, device_map)
    _require_decoder(hf.config, name)
    _require_complete(hf, report, name)
    return hf


def _require_parts(hf: Any, device_map: dict[str, Any]) -> None:
    """Refuse a device map that names what the model has not: transformers passes over it."""
    names = {name for name, _ in hf.named_modules()} | {name for name, _ in hf.named_parameters()}
    for name in device_map:
        if name not in names:
            parts = ", ".join(part for part, _ in list(hf.named_modules())[1:] if part.count(".") < 2)
            raise KeyholeError(
                f"device_map names {shortened(repr(name))}, which is no part of this model: it has {shortened(parts)}."
            )


def _require_complete(hf: Any, report: dict[str, Any], name: str) -> None:
    """Refuse weights that do not fit the config: transformers would fill the gaps with random numbers."""
    missing, wrong = sorted(report.get("missing_keys", ())), sorted(map(str, report.get("mismatched_keys", ())))
    extra = [key for key in sorted(report.get("unexpected_keys", ())) if ".layers." in key or ".h." in key]
    for problem, keys in (("lacks", missing), ("has the wrong shape for", wrong), ("has no place for", extra)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise KeyholeError(f"cannot load {name}: its weight file {problem} {keys[0]}{more}.")


def _tokenizer(path: Any, options: dict[str, Any]) -> tuple[Any, str | None]:
    """The model's tokenizer, or None and the reason; a folder of weights alone is a legitimate model."""
    if isinstance(path, Path) and "gguf_file" not in options and not _has_tokenizer(path):
        return None, None
    try:
        return AutoTokenizer.from_pretrained(path, **_OWN_CODE, **options), None
    except Exception as error:  # as many kinds as above
        return None, _first_line(error)


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
