"""Is everything in the wheel? It is built, installed apart, and used from another folder as a stranger would."""

import os
import subprocess
import sys
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from explorers import explorer

ROOT = Path(__file__).parent.parent
PROMPT = "When Mary and John went to the store, John gave a drink to"


def tool(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert told.returncode == 0, told.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked, which is all that installing a wheel of plain files comes to."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def environment(installed: Path, folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**clean, "KEYHOLE_CACHE": str(folder / "cache"), "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}


def run(installed: Path, folder: Path, *command: str) -> str:
    told = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(installed, folder),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


known_by_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="which files are kept is known by git")


@known_by_git
def test_every_file_of_the_package_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert not tool("release").source_files() - inside
    needed = ("py.typed", "models/organism/model.safetensors", "models/organism/tokenizer.json")
    assert {
        *(f"keyhole/{name}" for name in needed),
        "keyhole_papers/page.html",
        "keyhole_papers/catalogue/svt.toml",
    } <= inside
    assert not any(name.startswith(("tests/", "tools/", "docs/")) or "__pycache__" in name for name in inside)


def test_its_metadata_says_who_it_is(wheel: Path) -> None:
    import keyhole

    text = tool("release").metadata(wheel)
    assert f"\nVersion: {keyhole.__version__}\n" in text and "\n# Keyhole\n" in text
    assert "Description-Content-Type: text/markdown" in text and "License-Expression: MIT" in text


def test_it_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    code = f"""
import keyhole, pathlib
assert pathlib.Path(keyhole.__file__).is_relative_to({str(installed)!r}), keyhole.__file__
model = keyhole.load()
run = model.run({PROMPT!r})
circuit = run.trace("Mary", against="John")
for name in ("mary.json", "mary.html", "mary.mib", "mary.neuronpedia.json"):
    circuit.save(name)
print(keyhole.check(model, list(run.token_ids)).exact, keyhole.Circuit.load("mary.json") == circuit)
"""
    assert run(installed, tmp_path, "-c", code).split() == ["True", "True"]
    assert "<html" in (tmp_path / "mary.html").read_text() and (tmp_path / "mary.mib").stat().st_size > 100


def test_commands_run_from_another_folder(installed: Path, tmp_path: Path) -> None:
    """In one process, which imports the libraries once."""
    commands = [
        ["check"],
        ["trace", PROMPT, "--out", "mary.json"],
        ["verify", "mary.json", "--sides-only"],
        ["reproduce", "svf-thm1", "--quick", "--out", "results"],
    ]
    code = f"""
import sys
from keyhole.cli.app import main
for words in {commands!r}:
    sys.argv = ["keyhole", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, (words, stop.code)
"""
    told = run(installed, tmp_path, "-c", code)
    assert "exact within" in told and "wrote mary.json" in told and "equal the predicted ones" in told
    assert (tmp_path / "results" / "results.json").is_file()


def test_the_explorer_serves_its_page_from_there(installed: Path, tmp_path: Path) -> None:
    served = explorer(environment=environment(installed, tmp_path), folder=tmp_path)
    with served as address, httpx.Client(follow_redirects=True) as client:
        page, script = client.get(address), client.get(urljoin(address, "/app.js"))
        assert (page.status_code, script.status_code) == (200, 200) and "<html" in page.text
        assert script.text == (installed / "keyhole" / "web" / "static" / "app.js").read_text(encoding="utf-8")


def test_pictures_of_the_readme_have_addresses() -> None:
    absolute: Any = tool("readme_hook").absolute
    told = absolute("![a](docs/a.png) [b](docs/b.md) [c](#c) [d](https://d.org)", "https://github.com/me/key/", "1.2")
    raw, page = "https://raw.githubusercontent.com/me/key/v1.2", "https://github.com/me/key/blob/v1.2"
    assert told == f"![a]({raw}/docs/a.png) [b]({page}/docs/b.md) [c](#c) [d](https://d.org)"
    whole = absolute((ROOT / "README.md").read_text(encoding="utf-8"), "https://github.com/me/key", "1")
    pictures = whole.count("https://raw.githubusercontent.com/me/key/v1/docs/")
    assert "](docs/" not in whole and pictures == whole.count("![") > 0


@known_by_git
def test_pictures_have_addresses_in_what_is_built(tmp_path: Path) -> None:
    """A wheel of a checkout that was cloned from GitHub; of one that was not, `make release` says what is missing."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)], check=True, timeout=100)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    for remote, path, there in (
        ("git@github.com:me/key.git", os.environ["PATH"], True),
        ("git@github.com:me/key.git", "", False),  # without git, it can still be built
        (str(ROOT), os.environ["PATH"], False),
    ):
        subprocess.run(["git", "remote", "set-url", "origin", remote], cwd=clone, check=True)
        subprocess.run(build, cwd=clone, check=True, capture_output=True, timeout=200, env={**os.environ, "PATH": path})
        text = tool("release").metadata(next((tmp_path / "dist").glob("*.whl")))
        assert (
            f"https://raw.githubusercontent.com/me/key/v{tool('release').version()}/docs/circuit.png" in text
        ) == there
        assert ("](docs/" not in text) == there == ("Project-URL: Repository, https://github.com/me/key" in text)


def test_a_release_is_told_where_it_should_be() -> None:
    unsaid: Any = tool("release").unsaid
    dated, cited = "# Changelog\n\n## 1.2.0 (2027-01-31)\n", "cff-version: 1.2.0\nversion: 1.2.0\n"
    assert unsaid("1.2.0", dated, cited) == []
    for number, log, citation, wrong in (
        ("1.2.0", "## 1.2.0 (unreleased)\n", cited, "CHANGELOG.md"),
        ("1.2.0", "## 1.2.0\n", cited, "CHANGELOG.md"),
        ("1.2", dated, "version: 1.2\n", "CHANGELOG.md"),  # of another one
        ("1.2.0", dated, "cff-version: 1.2.0\nversion: 1.1.0\n", "CITATION.cff"),  # of the format
        ("1.2.0", dated, "version: 1.2.0rc1\n", "CITATION.cff"),
    ):
        (found,) = unsaid(number, log, citation)
        assert found.startswith(wrong)


def test_what_a_citation_says_is_so() -> None:
    import yaml

    import keyhole

    told = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (told["cff-version"], told["version"], told["license"]) == ("1.2.0", keyhole.__version__, "MIT")
    assert {"message", "title", "authors"} <= set(told) and told["type"] == "software"
    assert "explore" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
