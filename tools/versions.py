"""Do the oldest and the newest torch and transformers that pyproject.toml allows pass the core tests?

    python tools/versions.py            both, each in an environment of its own under .cache/versions/
    python tools/versions.py oldest --torch 2.13.0+cpu    another torch, where the oldest is not to be had

The core is what every number rests on: models are read exactly, circuits are those of goldens, removals do as
predicted, files keep what they say. Slow: an environment takes a few hundred MB, its tests some minutes.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("torch", "transformers")
CPU = "https://download.pytorch.org/whl/cpu"  # wheels without CUDA, of which each takes gigabytes
CORE = (
    *("test_exact", "test_capture", "test_load", "test_neighbours", "test_omega", "test_writers", "test_channels"),
    *("test_firing", "test_circuits", "test_goldens", "test_intervene", "test_organism", "test_mib"),
)
TOOLS = ("accelerate", "beartype", "gguf", "hypothesis", "jsonschema", "pandas", "psutil", "pytest<9.2")


def pins(name: str, requirements: list[str], given: dict[str, str]) -> list[str]:
    """What an environment asks of the two packages.

    >>> pins("oldest", ["torch>=2.6,<2.14", "transformers>=5.15,<6", "numpy>=2.0"], {})
    ['torch==2.6.*', 'transformers==5.15.*']
    >>> pins("newest", ["torch>=2.6,<2.14", "transformers>=5.15,<6"], {"torch": "2.13.0+cpu"})
    ['torch==2.13.0+cpu', 'transformers>=5.15,<6']
    """
    found = []
    for requirement in requirements:
        package = re.split(r"[<>=]", requirement)[0]
        if package not in PACKAGES:
            continue
        floor = re.search(r">=([\d.]+)", requirement)
        if floor is None:
            raise SystemExit(f"{requirement} has no oldest version: write one into pyproject.toml.")
        if package in given:
            found.append(f"{package}=={given[package]}")
        else:
            found.append(f"{package}=={floor[1]}.*" if name == "oldest" else requirement)
    return found


def environment(name: str, wanted: list[str]) -> Path:
    """A virtual environment with Keyhole as it stands here, and these versions."""
    folder = ROOT / ".cache" / "versions" / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--upgrade"]
    where = [] if any("+cpu" in pin for pin in wanted) else ["--extra-index-url", CPU]
    subprocess.run([*install, *where, "-e", str(ROOT), *wanted, *TOOLS], check=True)
    return python


def tried(name: str, given: dict[str, str]) -> bool:
    """Did the core tests pass there?"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = environment(name, pins(name, project["dependencies"], given))
    told = (
        "import platform, torch, transformers as t; print(platform.python_version(), torch.__version__, t.__version__)"
    )
    versions = subprocess.run([str(python), "-c", told], check=True, capture_output=True, text=True).stdout.split()
    print(f"{name}: Python {versions[0]}, torch {versions[1]}, transformers {versions[2]}", flush=True)
    tests = [f"tests/{one}.py" for one in CORE]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env={**clean, "OMP_NUM_THREADS": "1"}).returncode == 0


def main() -> None:
    """Both environments, or those that are named; exits with 1 if one does not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["oldest", "newest"], metavar="oldest|newest")
    for package in PACKAGES:
        parser.add_argument(f"--{package}", metavar="VERSION", help=f"this {package} instead")
    options = parser.parse_args()
    if unknown := set(options.names) - {"oldest", "newest"}:
        parser.error(f"there is no environment {', '.join(sorted(unknown))}: there are oldest and newest")
    given = {package: value for package in PACKAGES if (value := getattr(options, package)) is not None}
    passed = {name: tried(name, given) for name in options.names}
    for name, fine in passed.items():
        print(f"{name}: {'passes' if fine else 'FAILS'}")
    sys.exit(0 if all(passed.values()) else 1)


if __name__ == "__main__":
    main()
