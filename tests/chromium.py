"""A real Chromium, and pages in it that note what goes wrong: errors in the console, requests that leave the machine."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
LOCAL = ("127.0.0.1", "localhost")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's own Chromium; without one the tests fail and say so."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "the page is tested in a real Chromium: install it (apt install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield browser
        browser.close()


class Watched:
    """A page, and what it did wrong so far."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(text)

    def _asked(self, address: str) -> None:
        found = urlsplit(address)
        if found.scheme != "data" and found.hostname not in LOCAL:
            self.wrong.append(f"a request left the machine: {address}")
