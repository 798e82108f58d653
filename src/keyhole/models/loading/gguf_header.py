"""Is a GGUF file whole? Its header says where every tensor ends; readers of tensors stumble over less without a word.

The layout: magic, version, number of tensors, number of entries; entries (name, type, value); tensors (name,
dimensions, type, offset); then, aligned, the tensors themselves.
"""

import mmap
import struct
from pathlib import Path

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
            f"{path} is cut short: its header tells of {needed:,} bytes, and it has {size:,}. Fetch it again."
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
