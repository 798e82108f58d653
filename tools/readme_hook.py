"""How does the README look on a package index? Its pictures by absolute address, which an index needs to show them.

The address is that of the repository on GitHub, at the tag of the version: of the remote that a checkout was cloned
from. Without one the README stays as it is, and `make release` says so.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?://|#|mailto:)([^)\s]+)(\))")


def absolute(text: str, repository: str, version: str) -> str:
    """Relative pictures and links of a Markdown text, as addresses in a repository on GitHub at a version's tag.

    >>> absolute("![a](docs/a.png) [b](docs/b.md) [c](#c) [d](https://d.org)", "https://github.com/me/keyhole", "1.2")
    ... # doctest: +NORMALIZE_WHITESPACE
    '![a](https://raw.githubusercontent.com/me/keyhole/v1.2/docs/a.png)
     [b](https://github.com/me/keyhole/blob/v1.2/docs/b.md) [c](#c) [d](https://d.org)'
    """
    page = repository.rstrip("/")
    raw = page.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def place(found: re.Match[str]) -> str:
        picture = found[1].startswith("!")
        base = f"{raw}/v{version}" if picture else f"{page}/blob/v{version}"
        return f"{found[1]}{base}/{found[2]}{found[3]}"

    return _LINK.sub(place, text)


def address(remote: str) -> str | None:
    """The page of a repository on GitHub, as git knows it; None: it is elsewhere.

    >>> address("git@github.com:me/keyhole.git"), address("https://github.com/me/keyhole"), address("/home/me/keyhole")
    ('https://github.com/me/keyhole', 'https://github.com/me/keyhole', None)
    """
    found = re.fullmatch(r"(?:https://|ssh://git@|git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?", remote.strip())
    return f"https://github.com/{found[1]}" if found else None


def repository(root: Path) -> str | None:
    """Where this checkout comes from."""
    if not (root / ".git").exists():  # an sdist, or somebody else's repository around it
        return None
    try:
        told = subprocess.run(["git", "remote", "get-url", "origin"], cwd=root, capture_output=True, text=True)
    except OSError:  # no git here
        return None
    return address(told.stdout) if told.returncode == 0 else None


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]
    """What hatchling asks for the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the README into the package's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        place = repository(Path(self.root))
        if place is not None:
            metadata["urls"] = {"Repository": place}
            version = re.search(r'__version__ = "([^"]+)"', (Path(self.root) / "src/keyhole/version.py").read_text())
            assert version is not None
            text = absolute(text, place, version[1])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
