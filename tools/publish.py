"""What do the docs say was measured? Writes docs/reproduction.md and the quotes of docs/laboratory.md from results.

    python tools/publish.py reproduction elsewhere/reproduction

The results published so far are in docs/reproduction.json, without pictures; those of the folders given are merged over
them, the later of two. Without a folder, only the pages are written anew. A test compares both pages with that file.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from keyhole.files import write_at_once
from keyhole_papers.report import write_table
from keyhole_papers.results import Result, merged, read_results

DOCS = Path(__file__).resolve().parents[1] / "docs"
_QUOTE = re.compile(r"(<!-- quote (?P<key>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def quoted(text: str, results: Mapping[str, Result]) -> str:
    r"""The page with every quote as the results have it: `<!-- quote svf-thm3 -->` ... `<!-- end -->`.

    >>> page = "<!-- quote svf-thm3 -->\nold\n<!-- end -->"
    >>> print(quoted(page, {"svf-thm3": Result("svf-thm3", "reproduced", "All 5 hold.")}))
    <!-- quote svf-thm3 -->
    > `svf-thm3`, reproduced: All 5 hold.
    <!-- end -->
    """
    return _QUOTE.sub(lambda found: f"{found[1]}{_told(found['key'], results)}\n{found[3]}", text)


def _told(key: str, results: Mapping[str, Result]) -> str:
    result = results.get(key)
    if result is None or not result.measured:
        return f"> `{key}`: not measured yet."
    return f"> `{key}`, {result.said}: " + "  \n> ".join(result.measured.splitlines())


def publish(folders: list[Path], docs: Path = DOCS) -> None:
    """Merges the folders into the published results and writes both pages."""
    found: dict[str, Result] = {}
    for folder in folders:
        found = merged(found, {key: one for key, one in read_results(folder).items() if one.state != "quick"})
    write_table(found, docs / "reproduction.md")
    page = docs / "laboratory.md"
    write_at_once(page, quoted(page.read_text(encoding="utf-8"), read_results(docs / "reproduction.json")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders that `keyhole reproduce` wrote")
    publish(parser.parse_args().folders)
