"""Pages of a server that note what goes wrong: errors in the console, dialogs, requests that leave the machine."""

from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Page

from pages import chromium

__all__ = ["Watched", "chromium"]
LOCAL = ("127.0.0.1", "localhost")


class Watched:
    """A page, and what it did wrong so far."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._asked(request.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(text)

    def _asked(self, address: str) -> None:
        found = urlsplit(address)
        if found.scheme != "data" and found.hostname not in LOCAL:
            self.wrong.append(f"a request left the machine: {address}")
