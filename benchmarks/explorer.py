"""How long does one wait for the explorer? From the command to the page, and from a click to its explanation.

    python benchmarks/explorer.py .cache/smollm2.gguf

The server runs in a process of its own, the page in Chromium, both on this machine. `listening` is from the command to
the printed address; `first paint` is the browser's own measure, of a page whose server is up; `explained` is from a
click on a cell to the numbers of that firing in the page, over fresh firings: the median and the slowest. Each model is
loaded before, as it is once a prompt has been looked at.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

from playwright.sync_api import Page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from explorers import explorer
from pages import chromium

PROMPT = "When Mary and John went to the store, John gave a drink to"
CLICKS = 12
THERE = """([name, src]) => {
  const [before, after] = (document.querySelector('.why .which')?.textContent ?? '').split('←');
  return before.startsWith(name) && after?.startsWith(src) && document.querySelector('.why .sentence');
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def explained(page: Page, heads: list[tuple[int, int]]) -> list[float]:
    """Seconds from a click on a firing to its explanation, one for each head."""
    found = []
    for layer, head in heads:
        page.click(f"svg.heads [data-layer='{layer}'][data-head='{head}']")
        page.wait_for_selector(f".why .which .headname:text-is('{layer}.{head}')")
        page.wait_for_load_state("networkidle")
        cells = page.locator(".view.pattern button.firing")
        if cells.count() < 2:  # the first is explained already
            continue
        cell = cells.nth(1)
        where = [f"{layer}.{head}{cell.get_attribute('data-dest')}", cell.get_attribute("data-src")]
        began = time.perf_counter()
        cell.click()
        page.wait_for_function(THERE, arg=where)
        found.append(time.perf_counter() - began)
    return found


def main(gguf: str) -> None:
    began = time.perf_counter()
    with explorer(gguf) as address, chromium() as browser:
        print(f"listening           {time.perf_counter() - began:6.2f} s")
        for model, heads in (
            (None, [(i % 4, (3 * i) % 8) for i in range(CLICKS)]),
            (gguf, [(12 + i, i % 9) for i in range(CLICKS)]),
        ):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            place = {"prompt": PROMPT, **({} if model is None else {"model": model})}
            page.goto(f"{address}&{urlencode(place)}")
            page.wait_for_selector(".why .which", timeout=120_000)
            if model is None:
                page.reload()
                page.wait_for_selector(".why .which")
                print(f"first paint         {page.evaluate(PAINT) / 1000:6.2f} s")
            times = explained(page, heads)
            name = "organism" if model is None else Path(model).name
            print(f"explained, {name:<14} {median(times):6.3f} s, slowest {max(times):.3f} s, {len(times)} clicks")
            page.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    main(parser.parse_args().gguf)
