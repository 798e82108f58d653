"""Which mutants are there, and do they still apply? Read from tools/mutants/*.toml, for tools/mutants.py."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "keyhole"


class BadMutantError(Exception):
    """The list of mutants does not fit the code."""


@dataclass(frozen=True)
class Mutant:
    """One wrong number."""

    name: str
    file: str  # below src/keyhole
    old: str  # stands exactly once in the file
    new: str
    shows: str  # what a user would see
    tests: tuple[str, ...]  # below tests; at least one must fail

    def applied(self, package: Path) -> str:
        """The text of the file with the mutant in it."""
        text = (package / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise BadMutantError(f"{self.name}: its text stands {found} times in {self.file}, not once: {self.old!r}")
        return text.replace(self.old, self.new)


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


def check(mutants: Sequence[Mutant], package: Path = PACKAGE, tests: Path = ROOT / "tests") -> list[str]:
    """What is wrong with the list: texts that are gone, changes that change nothing, tests that do not exist."""
    wrong = []
    for mutant in mutants:
        try:
            text = mutant.applied(package)
            if mutant.file.endswith(".py"):  # scripts of pages are checked by TypeScript
                compile(text, mutant.file, "exec")
        except (BadMutantError, OSError, SyntaxError) as error:
            wrong.append(str(error))
        if mutant.old == mutant.new or not mutant.tests:
            wrong.append(f"{mutant.name}: it changes nothing, or nothing could notice")
        for test in mutant.tests:
            file, _, function = test.partition("::")
            path = tests / file
            if not path.is_file() or f"def {function.partition('[')[0]}(" not in path.read_text(encoding="utf-8"):
                wrong.append(f"{mutant.name}: there is no test {test}")
    return wrong
