"""How is a GGUF file read? Checked by its header, converted once and kept, with the libraries' bars and warnings off.

Its header says where every tensor ends; libraries that read tensors do not notice a file that is cut short. The
layout: magic, version, number of tensors, number of entries; entries (name, type, value); tensors (name, dimensions,
type, offset); then, aligned, the tensors themselves.
"""

import contextlib
import copy
import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from huggingface_hub import utils as hub
from safetensors.torch import save_file
from torch import Tensor
from transformers.utils import logging

from keyhole import cache as kept
from keyhole.errors import KeyholeError

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes per type of value
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 4  # of a tensor, at most: as the format has it


class _DamagedError(Exception):
    """The header makes no sense."""


class _Cursor:
    """Reads on from a place in the file; struct.error at its end."""

    def __init__(self, data: mmap.mmap, order: str) -> None:
        self.data, self.order, self.at = data, order, 4

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(self.order + kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return int(value)

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self.data):
            raise struct.error

    def text(self) -> bytes:
        size = self.number("Q")
        self.skip(size)
        return self.data[self.at - size : self.at]

    def value(self, kind: int) -> int | None:
        """Skips a value; returns it if it is a 32-bit number."""
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SCALARS:
                self.skip(_SCALARS[inner] * count)
            else:
                for _ in range(count):
                    self.value(inner)
        elif kind in (4, 5):
            return self.number("I")
        elif kind in _SCALARS:
            self.skip(_SCALARS[kind])
        else:
            raise _DamagedError
        return None


def require_whole(path: Path) -> None:
    """Refuse a file that is no GGUF file, or that ends before its header says."""
    size = path.stat().st_size
    if size == 0:
        raise KeyholeError(f"{path} is empty: fetch it again.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise KeyholeError(f"{path} is no GGUF file: it does not begin with GGUF.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                needed = _end(data)
            except (struct.error, OverflowError) as error:
                raise KeyholeError(f"{path} is cut short: it ends inside its header. Fetch it again.") from error
            except (_DamagedError, RecursionError) as error:
                raise KeyholeError(f"{path} is damaged: its header cannot be read. Fetch it again.") from error
    if size < needed:
        raise KeyholeError(
            f"{path} is cut short: its header describes {needed:,} bytes, and it has {size:,}. Fetch it again."
        )


def _end(data: mmap.mmap) -> int:
    """Where the last tensor ends."""
    from gguf import GGML_QUANT_SIZES

    cursor = _Cursor(data, "<")
    version = cursor.number("I")
    if version & 0xFFFF == 0:  # written on a machine of the other byte order
        cursor.order, version = ">", struct.unpack(">I", struct.pack("<I", version))[0]
    if version not in (2, 3):
        raise _DamagedError
    tensors, entries = cursor.number("Q"), cursor.number("Q")
    alignment = 32
    for _ in range(entries):
        name = cursor.text()
        value = cursor.value(cursor.number("I"))
        if name == b"general.alignment" and value:
            alignment = value
    end = 0
    for _ in range(tensors):
        cursor.text()
        elements, dimensions = 1, cursor.number("I")
        if dimensions > _DIMENSIONS:  # a product of thousands would take for ever
            raise _DamagedError
        for _ in range(dimensions):
            elements *= cursor.number("Q")
        kind, offset = cursor.number("I"), cursor.number("Q")
        if kind not in GGML_QUANT_SIZES:
            raise _DamagedError
        block, size = GGML_QUANT_SIZES[kind]  # type: ignore[index]
        end = max(end, offset + elements // block * size)
    return -(-cursor.at // alignment) * alignment + end


# How is a GGUF file opened? Through transformers the first time, from the cache afterwards; all bits are equal.

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
    tensors: dict[int, tuple[str, Tensor]] = {}  # tied weights once, by their first name
    for name, tensor in hf.state_dict(keep_vars=True).items():
        tensors.setdefault(id(tensor), (name, tensor))
    save_file(
        {name: _smallest(tensor.detach()) for name, tensor in tensors.values()},
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
    """The tokenizer with the rules of its file: some classes of transformers replace them by rules of their own."""
    tokenizer._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer


def _behaviour(tokenizer: Any) -> tuple[Any, ...]:
    """What a tokenizer does with texts."""
    ids = [tokenizer(_PROBE, add_special_tokens=special)["input_ids"] for special in (True, False)]
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return type(tokenizer), tokenizer.backend_tokenizer.to_str(), special, tokenizer.chat_template, ids


def _smallest(tensor: Tensor) -> Tensor:
    """The tensor in the smallest dtype that holds it exactly: weights that were half precision stay as small."""
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


# How is a model loaded without output? Progress bars and warnings of libraries are off, and restored afterwards.


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """No bars, and errors only, of transformers and the hub's client."""
    verbosity, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), not _hub_bars_off()
    placing = getLogger("accelerate")  # it warns of weights on a disk
    level = placing.level
    logging.set_verbosity_error()
    placing.setLevel(ERROR)
    logging.disable_progress_bar()  # the hub's too
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        placing.setLevel(level)
        if bars:
            logging.enable_progress_bar()  # the hub's too
        if hub_bars and _hub_bars_off():
            hub.enable_progress_bars()
        elif not hub_bars and not _hub_bars_off():
            hub.disable_progress_bars()


def _hub_bars_off() -> bool:
    return bool(hub.are_progress_bars_disabled())
