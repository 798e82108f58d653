"""Do the oldest and the newest packages that pyproject.toml allows pass the core tests?

    python tools/versions.py                              both, each in an environment of its own under .cache/versions/
    python tools/versions.py oldest --python python3.12   another interpreter; may be given several times
    python tools/versions.py newest --torch 2.13.0+cpu    another torch, or --transformers

`oldest` has every dependency at its floor, `newest` whatever the package index gives. The core is what every number
rests on: models are read exactly, circuits are those of goldens, removals do as predicted, files keep what they say.
Slow: an environment takes a few hundred MB (gigabytes where torch comes with CUDA), its tests some minutes.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHOSEN = ("torch", "transformers")  # whose version may be given
CPU = "https://download.pytorch.org/whl/cpu"  # wheels without CUDA, of which each takes gigabytes
CORE = (
    *("test_exact", "test_capture", "test_load", "test_neighbours", "test_omega", "test_writers", "test_channels"),
    *("test_firing", "test_circuits", "test_goldens", "test_intervene", "test_mlps", "test_organism", "test_mib"),
)
TOOLS = ("accelerate", "anywidget", "beartype", "gguf", "hypothesis", "jsonschema", "pandas", "psutil", "pytest<9.2")
TOLD = "import platform, torch, transformers as t; print(platform.python_version(), torch.__version__, t.__version__)"


def pins(name: str, requirements: list[str], given: dict[str, str]) -> list[str]:
    """What an environment asks of the dependencies.

    >>> pins("oldest", ["torch>=2.6,<2.14", "transformers>=4.57.1,<6", "numpy>=2.0"], {})
    ['torch==2.6.*', 'transformers==4.57.1', 'numpy==2.0.*']
    >>> pins("newest", ["torch>=2.6,<2.14", "transformers>=4.57.1,<6"], {"torch": "2.13.0+cpu"})
    ['torch==2.13.0+cpu', 'transformers>=4.57.1,<6']
    """
    found = []
    for requirement in requirements:
        package, floor = re.split(r"[<>=]", requirement)[0], re.search(r">=([\d.]+)", requirement)
        if floor is None:
            raise SystemExit(f"{requirement} has no oldest version: write one into pyproject.toml.")
        if package in given:
            found.append(f"{package}=={given[package]}")
        elif name == "oldest":
            found.append(f"{package}=={floor[1]}" + (".*" if floor[1].count(".") < 2 else ""))
        else:
            found.append(requirement)
    return found


def environment(name: str, interpreter: str, wanted: list[str]) -> Path:
    """A virtual environment of an interpreter with Keyhole as it stands here, and these versions."""
    short = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    number = subprocess.run(short, check=True, capture_output=True, text=True).stdout.strip()
    folder = ROOT / ".cache" / "versions" / f"{name}-{number}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--upgrade"]
    subprocess.run([*install, *cpu_wheels(), "-e", str(ROOT), *wanted, *TOOLS], check=True)
    return python


def cpu_wheels() -> list[str]:
    """Where pip finds torch without CUDA. Nowhere if that cannot be reached: pip would retry it for every package."""
    try:
        urllib.request.urlopen(f"{CPU}/torch/", timeout=20).close()
    except OSError as error:
        print(f"{CPU} cannot be reached ({error}): torch as the package index has it, perhaps with CUDA.", flush=True)
        return []
    return ["--extra-index-url", CPU]


def tried(name: str, interpreter: str, given: dict[str, str]) -> tuple[str, bool]:
    """Which versions these were, and did the core tests pass with them?"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = environment(name, interpreter, pins(name, project["dependencies"], given))
    versions = subprocess.run([str(python), "-c", TOLD], check=True, capture_output=True, text=True).stdout.split()
    which = f"{name}: Python {versions[0]}, torch {versions[1]}, transformers {versions[2]}"
    print(which, flush=True)
    tests = [f"tests/{one}.py" for one in CORE]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    return which, subprocess.run(command, cwd=ROOT, env={**clean, "OMP_NUM_THREADS": "1"}).returncode == 0


def main() -> None:
    """Both environments of every interpreter, or those that are named; exits with 1 if one does not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["oldest", "newest"], metavar="oldest|newest")
    parser.add_argument("--python", action="append", metavar="PATH", help="this interpreter instead of the one running")
    for package in CHOSEN:
        parser.add_argument(f"--{package}", metavar="VERSION", help=f"this {package} instead")
    options = parser.parse_args()
    if unknown := set(options.names) - {"oldest", "newest"}:
        parser.error(f"there is no environment {', '.join(sorted(unknown))}: there are oldest and newest")
    given = {package: value for package in CHOSEN if (value := getattr(options, package)) is not None}
    done = [tried(name, python, given) for python in options.python or [sys.executable] for name in options.names]
    for which, fine in done:
        print(f"{which}: {'passes' if fine else 'FAILS'}")
    sys.exit(0 if all(fine for _, fine in done) else 1)


if __name__ == "__main__":
    main()
