"""Which files are served? Those that were there when the server began, by a fixed list: no path is ever joined."""

from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parents[1] / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


@dataclass(frozen=True)
class File:
    """One file of the page."""

    path: Path
    type: str


def files(root: Path = STATIC) -> dict[str, File]:
    """Every file of the page by its address; the page itself is at /."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix in TYPES:
            found["/" + path.relative_to(root).as_posix()] = File(path, TYPES[path.suffix])
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found
