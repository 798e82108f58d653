"""The docs as a site: it is built without a warning, makes no request, and its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.mark.xdist_group("site")
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
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
def test_the_api_lists_every_public_name(site: Path) -> None:
    import keyhole

    text = (site / "api.html").read_text(encoding="utf-8")
    assert [name for name in keyhole.__all__ if f">{name}<" not in text and f".{name}" not in text] == []
