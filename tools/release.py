"""Is this a release? Builds the sdist and the wheel into dist/, looks into both, and says what to upload.

Nothing is uploaded. What is wrong stops it: a version without an entry in CHANGELOG.md or CITATION.cff, a file that is
not in the wheel, a wheel that twine would refuse, pictures that an index could not show.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"


def version() -> str:
    """From its one place."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "src" / "keyhole" / "version.py").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def build() -> tuple[Path, Path]:
    """The sdist, and the wheel out of it: what is missing in the first is missing in the second."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)], check=True)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def problems(sdist: Path, wheel: Path) -> list[str]:
    """What speaks against an upload."""
    found = []
    number = version()
    found += unsaid(
        number, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    )
    if "](docs/" in metadata(wheel):
        found.append(
            "there is no remote `origin` on GitHub, so nobody knows where the README's pictures are: an index could "
            "not show them"
        )
    missing = source_files() - set(zipfile.ZipFile(wheel).namelist())
    found += [f"the wheel lacks {name}" for name in sorted(missing)]
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    found += [f"the sdist lacks {name}" for name in ("LICENSE", "README.md", "pyproject.toml") if name not in inside]
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    return [*found, *(["twine refuses them"] if checked.returncode else [])]


def unsaid(number: str, changelog: str, citation: str) -> list[str]:
    """Which of the two files do not tell of this version, and no other?"""
    found = []
    if not re.search(rf"^## {re.escape(number)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading '## {number} (YYYY-MM-DD)': it is unreleased")
    if not re.search(rf"^version: {re.escape(number)}$", citation, re.MULTILINE):  # cff-version is the format's
        found.append(f"CITATION.cff is not of version {number}")
    return found


def metadata(wheel: Path) -> str:
    """What an index reads of a wheel: who it is, and the README."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
    return archive.read(name).decode()


def source_files() -> set[str]:
    """Everything in the package that is kept in the repository, by its path in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "src/keyhole"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {name.removeprefix("src/") for name in listed}


def main() -> None:
    """Build, check, tell."""
    sdist, wheel = build()
    for path in (sdist, wheel):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB")
    found = problems(sdist, wheel)
    if found:
        print("Not to be uploaded:", *(f"  - {one}" for one in found), sep="\n")
        sys.exit(1)
    number = version()
    print(f"Fine. Tag it, then upload both:\n  git tag v{number} && git push --tags\n  twine upload dist/*")


if __name__ == "__main__":
    main()
