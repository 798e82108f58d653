"""How does the README look on a package index? Its pictures by absolute address, which an index needs to show them.

The address is that of the repository in [project.urls] of pyproject.toml, at the tag of the version. Without one the
README stays as it is, and `make release` says so.
"""

import re
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


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]
    """What hatchling asks for the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the README into the package's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        if repository:
            version = re.search(r'__version__ = "([^"]+)"', (Path(self.root) / "src/keyhole/version.py").read_text())
            assert version is not None
            text = absolute(text, repository, version[1])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
