"""Takes the pictures of the explorer for the docs, from the real page: python tools/screenshots.py docs

Needs Chromium (`make test` installs it) and a minute: a small store is traced, and its circuits are compared.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser

import keyhole

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from explorers import explorer
from pages import chromium

PROMPT = "When Mary and John went to the store, John gave a drink to"
FIRING = {"prompt": PROMPT, "head": "1.6", "dest": "14", "src": "2"}
FAMILIES = {"tab": "store", "store": "ioi.store", "part": "families", "grain": "edges", "k": "2"}
SUFFICIENT = {"tab": "circuit", "traced": "sufficient", "baseline": "task"}
WIDE, NARROW = (1440, 900), (800, 1100)
# file, what the address says, what must be seen before the picture is taken, size, theme, a button pressed before
SHOTS = (
    ("explorer-attention", FIRING, ".why .which", WIDE, "light", "Remove"),
    ("explorer-circuit", FIRING | {"tab": "circuit", "traced": "answer"}, "[data-fact=kept]", WIDE, "light", None),
    ("explorer-dark", FIRING | {"tab": "circuit", "traced": "answer"}, "[data-fact=kept]", WIDE, "dark", None),
    ("explorer-sufficient", FIRING | SUFFICIENT, "[data-fact=kept]", WIDE, "light", None),
    ("explorer-families", FIRING | FAMILIES, ".family", WIDE, "light", None),
    ("explorer-narrow", FIRING, ".why .which", NARROW, "light", None),
)


def main(folder: Path) -> None:
    """All of them, into one folder."""
    with tempfile.TemporaryDirectory() as aside:
        store = Path(aside) / "ioi.store"
        keyhole.bulk("ioi", n=96, out=store)
        with explorer("--store", str(store)) as address, chromium() as browser:
            for name, place, seen, size, theme, pressed in SHOTS:
                take(
                    browser, address, place, seen, size=size, theme=theme, pressed=pressed, path=folder / f"{name}.png"
                )


def take(
    browser: Browser,
    address: str,
    place: dict[str, str],
    seen: str,
    *,
    size: tuple[int, int],
    theme: str,
    pressed: str | None,
    path: Path,
) -> None:
    """One picture, in few colours so that it stays small."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if theme == "dark" else "light"
    )
    page = context.new_page()
    page.goto(f"{address}&{urlencode(place)}")
    page.wait_for_selector(seen, timeout=60_000)
    if pressed is not None:
        page.get_by_role("button", name=pressed).first.click()
    page.wait_for_timeout(3_000)  # for what is drawn after it
    page.screenshot(path=path)
    context.close()
    with Image.open(path) as image:
        image.convert("RGB").quantize(224).save(path, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
