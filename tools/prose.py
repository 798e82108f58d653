"""Fetch several megabytes of English prose: `python tools/prose.py .cache/prose.txt`, a paragraph a line.

Jane Austen's six novels (public domain) travel in the Debian package r-cran-janeaustenr (MIT), which apt-get downloads
and verifies; nothing is installed, and no rights are needed. The novels lie in R's lazy-load database: for each object
its length, then a zlib stream of R's XDR serialisation, here a vector of lines.
"""

import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "r-cran-janeaustenr"
DATA = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
SHORTEST = 12  # words of a paragraph: headings, signatures and lines of verse are left out
_STRINGS, _STRING = 16, 9  # types of R objects; the lowest byte of an object's flags


def main(out: Path) -> None:
    """Download, unpack, write."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            sys.exit(
                f"{tool} is not here, so that {PACKAGE} cannot be fetched: put English prose of a few MB, a paragraph "
                f"a line, into {out} yourself."
            )
    with tempfile.TemporaryDirectory() as folder:
        download(Path(folder))
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
        found = [line for novel in novels((Path(folder) / DATA).read_bytes()) for line in paragraphs(novel)]
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_suffix(".part")
    draft.write_text("\n".join(found) + "\n", encoding="utf-8")
    draft.replace(out)


def download(folder: Path) -> None:
    """With the lists of packages that are here, or (a fresh machine has none) with lists fetched into the folder."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={folder}", "-o", "APT::Sandbox::User="]
    tried = (
        [["apt-get", "-q", "download", PACKAGE]],
        [
            ["apt-get", "-q", *own, "update"],
            ["apt-get", "-q", *own, "download", PACKAGE],
        ],
    )
    for commands in tried:
        done = [subprocess.run(one, cwd=folder, capture_output=True, text=True) for one in commands]
        if list(folder.glob("*.deb")):
            return
    sys.exit(f"apt-get cannot download {PACKAGE}: {done[-1].stderr.strip()}")


def novels(database: bytes) -> Iterator[list[str]]:
    """The lines of each object in a lazy-load database."""
    while database:
        stream = zlib.decompressobj()
        content = stream.decompress(database[4:])
        if len(content) != struct.unpack(">I", database[:4])[0]:
            raise ValueError("an object is shorter than it says: the database is damaged, or of another kind.")
        yield strings(content)
        database = stream.unused_data


def strings(content: bytes) -> list[str]:
    """A vector of strings in XDR serialisation, version 3: "X", four numbers of which the last sizes an encoding."""
    magic, version, _, _, named = struct.unpack_from(">2s4i", content)
    if magic != b"X\n" or version != 3:
        raise ValueError(f"this is no XDR serialisation of version 3: {content[:14]!r}.")
    at = struct.calcsize(">2s4i") + named
    kind, count = struct.unpack_from(">ii", content, at)
    if kind & 255 != _STRINGS:
        raise ValueError(f"this is an R object of type {kind & 255}, not a vector of strings.")
    at, found = at + 8, []
    for _ in range(count):
        kind, size = struct.unpack_from(">ii", content, at)
        if kind & 255 != _STRING:
            raise ValueError(f"an R object of type {kind & 255} stands where a string should.")
        at, size = at + 8, max(size, 0)  # a missing string has the length -1
        found.append(content[at : at + size].decode())
        at += size
    return found


def paragraphs(lines: list[str]) -> Iterator[str]:
    """Lines up to an empty one, joined; underscores, which mark what was in italics, are left out."""
    for block in "\n".join(line.strip() for line in lines).split("\n\n"):
        words = block.replace("_", "").split()
        if len(words) >= SHORTEST:
            yield " ".join(words)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
