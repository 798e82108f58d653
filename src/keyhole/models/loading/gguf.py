"""How is a GGUF file opened? Through transformers the first time, from the cache every other time, with equal bits."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from keyhole import cache as kept
from keyhole.errors import KeyholeError
from keyhole.models.loading.gguf_header import require_whole

_FORMAT = "1"  # of an entry: what is converted, and how it is written
_PROBE = " It's 1745: cafe\u0301,\n\n\tnaïve  don't 漢字 <|endoftext|></s>"

Opened = tuple[Any, Any, str | None]  # a model, its tokenizer or None, why it has none


def open_gguf(path: Path, dtype: torch.dtype | str, read: Callable[..., Opened], *, keep: bool = True) -> Opened:
    """The model of a GGUF file, by `read(folder, dtype=..., **options)`; kept for the next time unless `keep` is off.

    An entry is found by the content of the file, whatever its name, the dtype asked for and the version of
    transformers.
    """
    try:
        content = kept.digest(path)
        require_whole(path)
    except OSError as error:
        raise KeyholeError(f"cannot read {path}: {error.strerror or error}.") from error
    name = kept.key_of(format=_FORMAT, content=content, dtype=str(dtype), transformers=transformers.__version__)
    entry = kept.find(name)
    if entry is not None:
        try:
            hf, tokenizer, problem = read(entry.path, dtype=getattr(torch, entry.about["dtype"]))
            return hf, _as_stored(tokenizer, entry.path), problem
        except Exception:  # as many kinds as libraries raise; the user's own mistakes come back from the file below
            pass
    with _parsed_once():
        opened = read(path.parent, dtype=dtype, gguf_file=path.name)
    if entry is not None:  # the file can be read and the entry cannot: a library has changed
        kept.remove(entry.path)
    hf, tokenizer, _ = opened
    if keep and tokenizer is not None:
        size = sum(p.numel() * p.element_size() for p in hf.parameters())
        about = {"dtype": str(hf.dtype).removeprefix("torch.")}
        kept.keep(name, path.name, about, size=size, write=partial(_write, hf, tokenizer))
    return opened


def _write(hf: Any, tokenizer: Any, folder: Path) -> None:
    """Model and tokenizer as a folder that transformers reads; it refuses to write models of GGUF files itself."""
    own: dict[int, tuple[str, Tensor]] = {}  # tied weights once, by their first name
    for name, tensor in hf.state_dict(keep_vars=True).items():
        own.setdefault(id(tensor), (name, tensor))
    save_file(
        {name: _smallest(tensor.detach()) for name, tensor in own.values()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = copy.deepcopy(hf.config)
    config.architectures = [type(hf).__name__]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(folder)
    if hf.generation_config is not None:
        hf.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = _as_stored(transformers.AutoTokenizer.from_pretrained(folder), folder)
    if _behaviour(again) != _behaviour(tokenizer):
        raise ValueError("its tokenizer would not come back as it is")


def _as_stored(tokenizer: Any, folder: Path) -> Any:
    """The tokenizer with the very rules of its file: some classes put rules of their own in the place of these."""
    tokenizer._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer


def _behaviour(tokenizer: Any) -> tuple[Any, ...]:
    """What a tokenizer does with texts."""
    ids = [tokenizer(_PROBE, add_special_tokens=special)["input_ids"] for special in (True, False)]
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return type(tokenizer), tokenizer.backend_tokenizer.to_str(), special, tokenizer.chat_template, ids


def _smallest(tensor: Tensor) -> Tensor:
    """The tensor in the smallest dtype that holds it exactly: what was half precision needs no more room than that."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        smaller = tensor.is_floating_point() and dtype.itemsize < tensor.element_size()
        if smaller and torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
            return tensor.to(dtype).contiguous()
    return tensor.contiguous()


@contextmanager
def _parsed_once() -> Iterator[None]:
    """While transformers reads a GGUF file, its reader and its table of names are made once instead of 3 and 400 times.

    Its own bar cannot be switched off in another way. Nothing but time depends on this: what a later version of a
    library no longer has is left alone.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    changes: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (gguf, "GGUFReader", cache),
        (gguf, "get_tensor_name_map", cache),
        (reading, "tqdm", lambda _: lambda items, **__: items),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, change in changes:
            before = getattr(module, name, None)
            if before is not None:
                setattr(module, name, change(before))
                stack.callback(setattr, module, name, before)
        yield
