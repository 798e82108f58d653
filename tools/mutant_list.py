"""Which mutants are there, and do they still apply? Read from tools/mutants/*.toml, for tools/mutants.py."""

import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"


class BadMutantError(Exception):
    """The list of mutants does not fit the code."""


@dataclass(frozen=True)
class Mutant:
    """One wrong number."""

    name: str
    old: str  # stands exactly once in the source, wherever that is
    new: str
    shows: str  # what a user would see
    tests: tuple[str, ...]  # below tests; at least one must fail

    def applied(self, texts: "Texts") -> tuple[str, str]:
        """The file it stands in, and the text of that with the mutant in it."""
        counts = {file: text.count(self.old) for file, text in texts.items() if self.old in text}
        if sum(counts.values()) != 1:
            times = f"{sum(counts.values())} times" + (f" ({', '.join(sorted(counts))})" if counts else "")
            raise BadMutantError(f"{self.name}: its text stands {times} in the source, not once: {self.old!r}")
        (file,) = counts
        return file, texts[file].replace(self.old, self.new)


Texts = Mapping[str, str]  # of the files below src


def read_source(source: Path = SOURCE) -> Texts:
    """Everything that a mutant may stand in."""
    paths = (path for path in sorted(source.rglob("*")) if path.suffix in (".py", ".js"))
    return {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def read_mutants(folder: Path = ROOT / "tools" / "mutants") -> list[Mutant]:
    """All mutants, in the order of their files."""
    made = []
    for path in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            made.append(Mutant(**{**row, "tests": tuple(row["tests"])}))
    names = [mutant.name for mutant in made]
    if doubles := {name for name in names if names.count(name) > 1}:
        raise BadMutantError(f"two mutants have the same name: {', '.join(sorted(doubles))}")
    return made


def check(mutants: Sequence[Mutant], tests: Path = ROOT / "tests") -> list[str]:
    """What is wrong with the list: texts that are gone, changes of nothing, names or tests that do not exist."""
    wrong, texts = [], read_source()
    changed = {}  # the text with each mutant in it, and without
    for mutant in mutants:
        try:
            file, text = mutant.applied(texts)
            if file.endswith(".py"):  # scripts of pages are checked by TypeScript
                compile(text, file, "exec")
                changed[mutant.name] = text, texts[file]
        except (BadMutantError, SyntaxError) as error:
            wrong.append(str(error))
        if mutant.old == mutant.new or not mutant.tests:
            wrong.append(f"{mutant.name}: it changes nothing, or nothing could notice")
        for test in mutant.tests:
            file, _, function = test.partition("::")
            path = tests / file
            if not path.is_file() or f"def {function.partition('[')[0]}(" not in path.read_text(encoding="utf-8"):
                wrong.append(f"{mutant.name}: there is no test {test}")
    return wrong + _unknown_names(changed)


def _unknown_names(changed: Mapping[str, tuple[str, str]]) -> list[str]:
    """Mutants that use a name that is bound nowhere: they crash, and show nothing. Axes in types look unbound, too."""
    unbound: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        for name, (after, before) in changed.items():
            (Path(folder) / f"{name}@after.py").write_text(after, encoding="utf-8")
            (Path(folder) / f"{name}@before.py").write_text(before, encoding="utf-8")
        options = ("--isolated", "--no-cache", "--select", "F821", "--output-format", "concise")
        found = subprocess.run(
            [sys.executable, "-m", "ruff", "check", *options, folder], capture_output=True, text=True, check=False
        )
    for line in found.stdout.splitlines():
        if "Undefined name" in line:
            unbound[Path(line.partition(".py:")[0]).name][line.split("`")[1]] += 1
    more = {name: unbound[f"{name}@after"] - unbound[f"{name}@before"] for name in changed}
    return [f"{name}: unknown names {', '.join(names)}" for name, names in more.items() if names]
