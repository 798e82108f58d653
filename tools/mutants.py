"""Would the tests notice? Breaks the library in one place at a time and runs the tests that should fail.

    python tools/mutants.py                 all mutants; minutes
    python tools/mutants.py --only swap     those whose name, or the file they stand in, contains this
    python tools/mutants.py --check         do all still apply? nothing is run

A mutant (tools/mutants/*.toml) replaces a text that stands exactly once in the source, so that a user would see a wrong
number. It is killed when one of its tests fails with an assertion or a refusal; a crash shows nothing and does not
count. A mutant that lives is a hole in the tests.

Importing torch and transformers takes longer than most tests, so that is done once: every mutant runs in a fork.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mutant_list import ROOT, BadMutantError, Mutant, check, read_mutants, read_source

LIMIT = 300  # seconds for the tests of one mutant
WARM = ("gpt2", "llama", "gemma2", "qwen3", "gpt_oss", "mistral", "bloom")  # tiny models most tests build


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    outcome: str  # killed, survived, or what else went wrong
    by: str  # the test that failed
    seconds: float
    output: str = field(repr=False)


# -- one run of pytest in a fork -----------------------------------------------------------------------------------


class Witness:
    """A pytest plugin: which test failed first, and with what kind of error."""

    def __init__(self) -> None:
        self.ran, self.by, self.fair = 0, "", False

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count tests."""
        self.ran += report.when == "call"

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """Keep the first failure."""
        if not self.by:
            self.by, self.fair = node.nodeid.removeprefix("tests/"), _is_fair(call.excinfo.value)


def _is_fair(error: BaseException) -> bool:
    """Is this a test's judgement or the library's refusal, and not a crash?"""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_fair(one) for one in error.exceptions)
    kinds = {kind.__name__ for kind in type(error).__mro__}  # by name: this process has no Keyhole of its own
    return bool(kinds & {"AssertionError", "KeyholeError", "Failed"})


def _fork(source: Path, tests: Sequence[str], report: Path) -> int:
    """Run some tests against the library in `source`, in a child; its report is a file."""
    if pid := os.fork():
        return pid
    os.setsid()
    log = os.open(report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["PYTHONPATH"] = str(source)
    sys.path.insert(0, str(source))
    import jaxtyping
    import pytest

    # Shapes are not checked: a wrong one is a crash, which shows nothing, and importing the library takes half as long.
    jaxtyping.install_import_hook = lambda *names, **options: None  # type: ignore[assignment,return-value]
    witness = Witness()
    ids = [f"tests/{test}" for test in tests]
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", *ids], plugins=[witness])
    import keyhole

    own = Path(keyhole.__file__).is_relative_to(source)  # another copy of the library would prove nothing
    told = {"code": int(code), "ran": witness.ran, "by": witness.by, "fair": witness.fair, "own": own}
    report.write_text(json.dumps(told))
    os._exit(0)


def _judge(report: Path) -> tuple[str, str]:
    """(outcome, test) of a finished child."""
    if not report.is_file():
        return f"no report within {LIMIT} s", ""
    told = json.loads(report.read_text())
    if not told["own"]:
        return "ran another copy of the library", ""
    if told["code"] == 0:
        return ("survived", "") if told["ran"] else ("ran no test", "")
    if told["code"] != 1 or not told["by"]:
        return "the tests could not be run", told["by"]
    return ("killed" if told["fair"] else "crashed", told["by"])


# -- all of them ---------------------------------------------------------------------------------------------------


@dataclass
class Slot:
    """A copy of the library for one child at a time."""

    folder: Path
    job: Mutant | None = None
    pid: int = 0
    started: float = 0.0
    changes: int = 0
    file: str = ""  # with the mutant in it

    def start(self, job: Mutant | None, tests: Sequence[str]) -> None:
        """Put a mutant in (None: nothing) and run its tests."""
        self.job, self.started, self.changes = job, time.monotonic(), self.changes + 1
        (self.folder / "report").unlink(missing_ok=True)
        if job is not None:
            self.file, text = job.applied(read_source())
            self._write(text)
        self.pid = _fork(self.folder / "src", tests, self.folder / "report")

    def finished(self) -> Verdict | None:
        """The verdict, if the child is done or out of time; the library is then as it was."""
        seconds, limit = time.monotonic() - self.started, LIMIT if self.job else 4 * LIMIT
        done, _ = os.waitpid(self.pid, os.WNOHANG)
        if not done and seconds < limit:
            return None
        if not done:
            self.stop()
        if self.job is not None:
            self._write((ROOT / "src" / self.file).read_text(encoding="utf-8"))
        output = (self.folder / "report.log").read_text(errors="replace")
        return Verdict(*_judge(self.folder / "report"), seconds, output)

    def stop(self) -> None:
        """End the child and whatever it started."""
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _write(self, text: str) -> None:
        path = self.folder / "src" / self.file
        path.write_text(text, encoding="utf-8")
        # Bytecode is kept beside the copies, and told apart by size and by whole seconds.
        self.changes += 1
        os.utime(path, (1e9 + self.changes, 1e9 + self.changes))


def run_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant | None, Verdict]]:
    """Verdicts as they come; first, with no mutant, that of all tests on the library as it is."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        first = Slot(Path(place) / "0")
        shutil.copytree(ROOT / "src", first.folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        everything = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
        for _, verdict in _run([first], [(None, everything)]):
            yield None, verdict
            if verdict.outcome != "survived":
                return
        slots = [first] + [Slot(Path(place) / str(i)) for i in range(1, jobs)]
        for slot in slots[1:]:
            shutil.copytree(first.folder / "src", slot.folder / "src")  # with its bytecode
        yield from _run(slots, [(mutant, mutant.tests) for mutant in mutants])


Job = tuple[Mutant | None, tuple[str, ...]]  # a mutant and its tests; None: the library as it is


def _run(slots: Sequence[Slot], jobs: Sequence[Job]) -> Iterator[tuple[Mutant | None, Verdict]]:
    """Keep every slot busy until all is done; whoever stops looking leaves no child behind."""
    waiting, busy = list(jobs), list[Slot]()
    try:
        while waiting or busy:
            for slot in [slot for slot in slots if slot not in busy][: len(waiting)]:
                slot.start(*waiting.pop(0))
                busy.append(slot)
            time.sleep(0.05)
            for slot in list(busy):
                if (verdict := slot.finished()) is not None:
                    busy.remove(slot)
                    yield slot.job, verdict
    finally:
        for slot in busy:
            slot.stop()


def warm_up() -> None:
    """Import once what every child needs, but nothing of Keyhole."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "tests"))
    import hypothesis  # noqa: F401
    import networkx  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import torch

    from tiny import tiny

    torch.set_num_threads(1)  # a fork does not inherit threads
    for variant in WARM:
        tiny(variant)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="those whose name or file contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--check", action="store_true", help="only see that all still apply")
    parser.add_argument("--list", action="store_true", help="print them and stop")
    chosen = parser.parse_args()
    try:
        mutants = [mutant for mutant in read_mutants() if chosen.only in f"{mutant.name} {_file(mutant)}"]
    except BadMutantError as error:
        print(error)
        return 1
    if chosen.list:
        for mutant in mutants:
            print(f"{mutant.name}  ({_file(mutant)})\n    {mutant.shows}\n    {' '.join(mutant.tests)}")
    for complaint in (wrong := check(mutants)):
        print(complaint)
    if wrong or chosen.check or chosen.list:
        print(f"{len(mutants)} mutants, {'all apply' if not wrong else 'not all apply'}")
        return 1 if wrong else 0
    return _report(mutants, chosen.jobs)


@cache
def _file(mutant: Mutant) -> str:
    """Where it stands; nothing, if that is not clear."""
    with suppress(BadMutantError):
        return mutant.applied(_source())[0]
    return ""


_source = cache(read_source)


def _report(mutants: Sequence[Mutant], jobs: int) -> int:
    """Run them, a line each, and a summary; 1 unless all were killed."""
    warm_up()
    counts: dict[str, list[str]] = defaultdict(list)
    begun = time.monotonic()
    for mutant, verdict in run_all(mutants, jobs):
        if mutant is None:
            print(
                f"as it is: {'all tests pass' if verdict.outcome == 'survived' else verdict} ({verdict.seconds:.0f} s)"
            )
            if verdict.outcome != "survived":
                print(verdict.output[-4000:])
                return 1
            continue
        counts[verdict.outcome].append(mutant.name)
        print(f"{verdict.seconds:6.1f} s  {verdict.outcome:9}  {mutant.name}  {verdict.by}", flush=True)
        if verdict.outcome not in ("killed", "survived"):
            print(verdict.output[-2000:])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime) / 60
    print(
        f"{len(counts['killed'])} of {len(mutants)} killed in {time.monotonic() - begun:.0f} s, {cpu:.1f} CPU minutes"
    )
    for outcome, names in counts.items():
        if outcome != "killed":
            print(f"{outcome}: {', '.join(names)}")
    return 0 if len(counts["killed"]) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
