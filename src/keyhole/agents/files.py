"""Which files may an agent read and write? Those in one folder, by names that lead nowhere else."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

from keyhole.errors import KeyholeError, UnwritableError
from keyhole.files import require_file
from keyhole.strict import quoted

LARGEST = 64 << 20  # bytes of a file that is read
LISTED, _LOOKED_AT = 200, 20_000  # circuits that are listed, and files that are looked at for them
_HEAD = 4096  # bytes by which a circuit is known
_OF_A_CIRCUIT = tuple(re.compile(rb'"%s"\s*:' % name) for name in (b"schema", b"model", b"versions", b"parameters"))


@dataclass(frozen=True)
class Folder:
    """One folder, and what this server wrote there: that alone is written again.

    A link may lead from one place in it to another, and not out of it.
    """

    path: Path  # without links
    written: set[Path] = field(default_factory=set)

    @classmethod
    def of(cls, path: Path | str) -> "Folder":
        """A folder, which must exist."""
        if not os.path.isdir(path):
            raise KeyholeError(f"there is no folder {path}: make it first, or name another one.")
        return cls(Path(path).resolve())

    def place(self, name: str) -> Path:
        """The path that a name stands for, refused unless it lies in the folder."""
        parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
        if not name.strip() or "\0" in name:
            raise KeyholeError(f"{quoted(name)} is no name of a file: give one such as mary.json.")
        if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or ".." in parts:
            raise KeyholeError(
                f"{quoted(name)} leads out of the folder of this server: name files by their place in it, such as "
                "mary.json."
            )
        try:
            path = (self.path / name).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, half of a character
            raise KeyholeError(f"{quoted(name)} leads to no file: give another name.") from error
        if not path.is_relative_to(self.path):
            raise KeyholeError(f"{quoted(name)} is a link that leads out of the folder of this server: it is not used.")
        if any(part.startswith(".") for part in (*parts, *path.relative_to(self.path).parts)):
            raise KeyholeError(f"{quoted(name)} is hidden, as settings of other programs are: give another name.")
        return path

    def existing(self, name: str, suffixes: Sequence[str]) -> Path:
        """A file to read."""
        path = self.place(name)
        if path.suffix.lower() not in suffixes:
            raise KeyholeError(f"{quoted(name)} should end in {' or '.join(suffixes)}.")
        if not os.path.exists(path):
            circuits = ", ".join(self.name_of(circuit) for circuit in self.circuits(8)) or "none yet"
            raise KeyholeError(
                f"there is no file {quoted(name)} in the folder of this server. Circuits in it: {circuits}."
            )
        if not os.path.isfile(path):  # a folder, or a pipe, on which reading would wait
            raise KeyholeError(f"{quoted(name)} is no file.")
        if (size := path.stat().st_size) > LARGEST:
            raise KeyholeError(f"{quoted(name)} has {size:,} bytes, and files up to {LARGEST:,} are read here.")
        return path

    def new(self, name: str, suffixes: Sequence[str]) -> Path:
        """A file to write; one that somebody else wrote is not replaced."""
        path = require_file(self.place(name), suffixes)
        if os.path.lexists(path) and path not in self.written:
            raise UnwritableError(f"{quoted(name)} exists, and this server did not write it: give another name.")
        return path

    def save(self, name: str, suffixes: Sequence[str], write: Callable[[Path], object]) -> None:
        """Have a file written, as `new` allows: it may have been there since that was looked at."""
        path = self.new(name, suffixes)
        write(path)
        self.written.add(path)

    def name_of(self, path: Path) -> str:
        """The name by which the file is known here."""
        return path.relative_to(self.path).as_posix()

    def without(self, text: str) -> str:
        """A text in which files are named by their place in the folder, as agents name them."""
        return text.replace(f"{self.path}{os.sep}", "")

    def circuits(self, most: int = LISTED) -> list[Path]:
        """Circuit files, by their names, as far as their beginnings show it."""
        circuits = list[Path]()
        for path in self._files():
            if len(circuits) == most:
                break
            if _is_circuit(path):
                circuits.append(path)
        return circuits

    def _files(self) -> Iterator[Path]:
        looked_at = 0
        for folder, folders, names in os.walk(self.path):  # follows no links
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                looked_at += 1
                if looked_at > _LOOKED_AT:
                    return
                path = Path(folder, name)
                if path.suffix.lower() == ".json" and not name.startswith(".") and not path.is_symlink():
                    yield path


def _is_circuit(path: Path) -> bool:
    """Does it begin as a circuit's document does? Reading all of it would take too long for a list."""
    if not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return all(pattern.search(head) for pattern in _OF_A_CIRCUIT)
