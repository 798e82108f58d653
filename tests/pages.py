"""Pages in a real Chromium: what was asked for over the network, and what went wrong, is remembered."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, Route, sync_playwright

_QUIET = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update", "disable-sync")


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser, for as long as a module's tests last."""
    path = shutil.which("chromium")
    assert path is not None, "the pages are tested in Chromium: run `make test`, which installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[f"--{name}" for name in _QUIET])
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, with all that it asked for and complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def check(self) -> None:
        """It is quiet, and stayed at home."""
        assert self.complaints == [] and [url for url in self.requests if not url.startswith(("file:", "blob:"))] == []


@contextmanager
def from_disk(
    browser: Browser,
    path: Path,
    *,
    size: tuple[int, int] = (1440, 900),
    scheme: Literal["light", "dark"] = "light",
) -> Iterator[Opened]:
    """A file opened with the network off. Whatever it does in between, it must not complain or ask for anything."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, offline=True, accept_downloads=True
    )
    opened = Opened(context.new_page())

    def ask(route: Route) -> None:
        opened.requests.append(route.request.url)
        route.continue_()

    context.route("**/*", ask)
    opened.page.on("console", lambda said: said.type in ("error", "warning") and opened.complaints.append(said.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("dialog", lambda dialog: (opened.complaints.append(dialog.message), dialog.dismiss()))
    opened.page.goto(path.as_uri())
    yield opened
    opened.check()
    context.close()


def carried(html: str) -> dict[str, Any]:
    """What a one-file page is told."""
    found = re.search(r'<script type="application/json" id="keyhole-data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data
