"""What starts without torch stays so: `import keyhole`, help, usage errors, versions; and a stop is no traceback."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

import pytest

import keyhole
from conftest import ROOT

HEAVY = ("torch", "transformers", "numpy", "scipy", "matplotlib", "networkx", "huggingface_hub", "pyarrow")
TELL = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "code",
    [
        "import keyhole",
        "from keyhole import KeyholeError",
        "import keyhole.cli.app",
        "from keyhole.tasks import ioi; ioi(3)",
    ],
)
def test_imports_are_light(code: str) -> None:
    done = python("-c", f"{code}\n{TELL}")
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


REQUESTS = {
    "--help": (0, "Why does this attention head attend here?"),
    "--version": (0, f"keyhole {keyhole.__version__}"),
    "trace --help": (0, "Which circuit is behind an answer?"),
    "contrast --help": (0, "--permutations"),
    "lab --help": (0, "emergence"),
    "lab svf --help": (0, "--preset"),
    "cache": (0, "kept"),
    "tasks --help": (0, "--skip-wrong"),
    "tasks ioi --n 2": (0, "2 prompts"),
    "nonsense": (2, "No such command"),
    "trace --nonsense": (2, "No such option"),
    "verify": (2, "Missing argument"),
    "heads": (2, "give a prompt"),
    "heads x --dtype float8": (2, "float8"),
}


def test_help_and_usage_errors_are_light() -> None:
    """All requests in one process, which then knows what they imported."""
    code = f"""
import contextlib, io, sys
from keyhole.__main__ import main
for request in {list(REQUESTS)!r}:
    sys.argv, said = ["keyhole", *request.split()], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
    print(repr((request, status, said.getvalue())))
{TELL}
"""
    done = python("-c", code)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr
    told = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert [request for request, _, _ in told] == list(REQUESTS)
    for request, status, said in told:
        assert status == REQUESTS[request][0] and REQUESTS[request][1] in said, (request, status, said)


def test_the_module_is_the_command() -> None:
    done = python("-m", "keyhole", "--version")
    assert done.returncode == 0 and done.stdout.startswith(f"keyhole {keyhole.__version__}") and not done.stderr
    assert 'keyhole = "keyhole.__main__:main"' in (ROOT / "pyproject.toml").read_text()


def test_public_names_are_what_type_checkers_see() -> None:
    tree = ast.parse(Path(keyhole.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in checked.body for alias in node.names}
    assert homes == keyhole._HOMES and {*homes, "KeyholeError"} == set(keyhole.__all__)
    for name, home in homes.items():
        assert getattr(keyhole, name) is getattr(sys.modules[home], name) and name in dir(keyhole)
    for package in keyhole._PACKAGES:
        assert getattr(keyhole, package).__name__ == f"keyhole.{package}"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = keyhole.nonsense


def test_no_module_hides_a_public_name() -> None:
    """A module that is imported late becomes an attribute of its package, in place of a function of its name."""
    found = [module.name for module in walk_packages(keyhole.__path__, "keyhole.") if "__main__" not in module.name]
    modules = [import_module(name) for name in found]
    public = {(module, name) for module in modules for name in getattr(module, "__all__", ())}
    assert (sys.modules["keyhole.tasks"], "vocabulary") in public
    hidden = [f"{m.__name__}.{name}" for m, name in public if isinstance(getattr(m, name), ModuleType)]
    assert not hidden


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_stop_while_importing_is_no_traceback() -> None:
    """The stop comes when torch begins to be imported, wherever in the process that is."""
    code = """
import builtins, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
original = builtins.__import__
def watched(name, *rest, **more):
    if name == "torch" and "torch" not in sys.modules:
        signal.raise_signal(signal.SIGINT)
    return original(name, *rest, **more)
builtins.__import__ = watched
sys.argv = ["keyhole", "heads", "Mary gave John a drink"]
from keyhole.__main__ import main
main()
"""
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
