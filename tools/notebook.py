"""Does the example notebook run? Executed with this Python and this source, in place: `python tools/notebook.py`."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def execute(path: Path, *, seconds: int = 120) -> Any:
    """The notebook with the outputs of a fresh kernel; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        kernel = Path(folder, "python3", "kernel.json")
        kernel.parent.mkdir()
        kernel.write_text(
            json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8"
        )
        # an interpreter of its own, whatever kernels are installed beside it
        specs = KernelSpecManager(kernel_dirs=[folder], ensure_native_kernel=False)
        manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs)
        paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        where = {"metadata": {"path": folder}}
        # Streams are joined: a busy machine would cut what a cell prints in two.
        client = NotebookClient(notebook, km=manager, timeout=seconds, resources=where, coalesce_streams=True)
        client.execute(env=environment)
    return notebook


def tidy(notebook: Any) -> Any:
    """Without what differs from one execution to the next: times, and the version of this Python."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


if __name__ == "__main__":
    nbformat.write(tidy(execute(NOTEBOOK)), NOTEBOOK)
