"""The docs as a site: it is built without a warning, makes no request, and its links lead somewhere."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from conftest import ROOT
from pages import chromium, from_disk
from shown import shown


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.mark.xdist_group("site")
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert (site / "icon.svg").read_bytes() == (ROOT / "src/keyhole/web/static/icon.svg").read_bytes()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src=[\"']?([^\"' >]+)", text)
        loaded += re.findall(
            r"<link[^>]* rel=[\"']?(?:stylesheet|preload|preconnect|icon)[^>]* href=[\"']?([^\"' >]+)", text
        )
        assert loaded and not [url for url in loaded if urlsplit(url).scheme not in ("", "data")], page.name
    for sheet in site.rglob("*.css"):
        found = re.findall(r"url\([\"']?([^)\"']+)", sheet.read_text(encoding="utf-8"))
        assert not [url for url in found if urlsplit(url).scheme not in ("", "data")], sheet.name


@pytest.mark.xdist_group("site")
def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    places = {name: set(re.findall(r" id=[\"']?([^\"' >]+)", text)) for name, text in pages.items()}
    for name, text in pages.items():
        if name == "404.html":
            continue
        for link in re.findall(r"<a[^>]* href=[\"']?([^\"' >]+)", text):
            url = urlsplit(link)
            if url.scheme:
                continue
            target = (Path(name).parent / unquote(url.path)).as_posix() if url.path else name
            target = os.path.normpath(target)
            assert (site / target).exists(), (name, link)
            if url.fragment and target.endswith(".html"):
                assert url.fragment in places[target] or url.fragment == "__skip", (name, link)


@pytest.mark.xdist_group("site")
def test_pages_on_a_disk_can_be_searched(site: Path, browser: Browser) -> None:
    with from_disk(browser, site / "index.html") as opened:
        opened.page.locator(".md-search__input").click()
        opened.page.keyboard.type("relative attention")
        found = opened.page.locator(".md-search-result__link[href*='channels.html']")
        expect(found.first).to_be_visible(timeout=60_000)


@pytest.mark.xdist_group("site")
def test_the_api_has_every_name_that_pages_and_examples_import(site: Path) -> None:
    import keyhole

    known = {found for page in ("api", "packages") for found in re.findall(r' id="([\w.]+)"', read(site, page))}
    assert {f"keyhole.{name}" for name in keyhole.__all__} <= known
    texts = [(ROOT / "README.md").read_text(), *(path.read_text() for path in (ROOT / "docs").glob("*.md"))]
    codes = [one.code for text in texts for one in shown(text) if one.python]
    codes += [path.read_text() for path in (ROOT / "examples").glob("*.py")]
    nodes = [node for code in codes for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{name.name}" for node in nodes for name in node.names if "keyhole" in str(node.module)}
    assert len(names) > 15
    of_modules = {name for name in names if any(one.startswith(f"{name}.") for one in known)}  # lab.known, tasks.ioi
    assert names - known - of_modules == set()


@pytest.mark.xdist_group("site")
def test_the_api_tells_fields_and_shows_doctests_as_code(site: Path) -> None:
    circuit = read(site, "api").partition('id="keyhole.Circuit"')[2].partition("<h3")[0]
    assert "how exact the run's decompositions are" in circuit.replace("&#39;", "'")
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre.*?</pre>", "", read(site, "packages"), flags=re.DOTALL)


def read(site: Path, page: str) -> str:
    return (site / f"{page}.html").read_text(encoding="utf-8")
