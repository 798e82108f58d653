"""The command line in processes of its own, forked from one that has imported the libraries: that saves seconds each.

How Keyhole starts in a fresh process, and what it imports then, is tested in test_start.py.
"""

import atexit
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

_SERVER = """
import json, os, pkgutil, signal, sys, traceback
from importlib import import_module
import keyhole, keyhole_papers
from keyhole.cli.app import _quiet_libraries, main

_quiet_libraries()  # as main does, before it imports them
for package in (keyhole, keyhole_papers):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            import_module(found.name)
for line in sys.stdin:
    args, folder, out, err, timeout, columns = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(folder)
            if columns is not None:
                os.environ["COLUMNS"] = str(columns)
            for number, path in ((0, os.devnull), (1, out), (2, err)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
            sys.stdin = open(0)
            signal.alarm(timeout)
            sys.argv = ["keyhole", *args]
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    """One for this worker; it ends with it."""
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    return server


def keyhole(
    *args: str,
    folder: Path | str = ".",
    timeout: int = 120,
    columns: int | None = None,
    meanwhile: Callable[[int], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """What `keyhole ...` answers, in a folder, on a terminal of so many columns; `meanwhile` is told the process."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as aside:
        out, err = (Path(aside) / name for name in ("out", "err"))
        server.stdin.write(json.dumps([args, str(Path(folder).resolve()), str(out), str(err), timeout, columns]) + "\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        if meanwhile is not None:
            meanwhile(child)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(["keyhole", *args], code, out.read_text(), err.read_text())
