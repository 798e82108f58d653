"""Shapes in annotations are checked while the tests run; every model here is tiny, built in, or on disk."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may need the hub
# What tests keep is theirs, and is used by the next run.
os.environ["KEYHOLE_CACHE"] = os.path.join(os.path.dirname(__file__), "..", ".cache", "keyhole")

from pathlib import Path

# Before the hook: what a module under it is the first to import would be compiled anew, seconds in every worker.
import accelerate  # noqa: F401
import beartype  # noqa: F401
import hypothesis
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401
import torch
import transformers.modeling_utils  # noqa: F401

from shapes import install

ROOT = Path(__file__).parent.parent
# Where there are shapes: checking every call elsewhere would make the task generators twenty times slower.
SHAPED = [path for path in (ROOT / "src" / "keyhole").rglob("*.py") if "from jaxtyping import" in path.read_text()]
# Records whose own refusals are tested with values of other types, which the checks would refuse first.
REFUSING = ("tracing/settings.py", "store/manifest.py")
SHAPED = [path for path in SHAPED if not path.as_posix().endswith(REFUSING)]
install([".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in SHAPED])

from typing import Any

import keyhole
from keyhole import Model
from keyhole.faithfulness.wiring import Wiring
from keyhole.tracing.exactness import random_ids
from keyhole.tracing.linear import Probe
from keyhole.tracing.trace import trace
from keyhole.tracing.writers import attention_writes
from tiny import DEFAULT, Sizes, tiny

torch.set_num_threads(1)
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, print_blob=True)
# `make fuzz` draws so many examples, other ones every time; what fails is kept in .hypothesis and tried first
hypothesis.settings.register_profile(
    "fuzz", deadline=None, print_blob=True, max_examples=int(os.environ.get("KEYHOLE_FUZZ", "2000"))
)
hypothesis.settings.load_profile("fuzz" if "KEYHOLE_FUZZ" in os.environ else "tests")

SMOLLM2 = ROOT / ".cache" / "smollm2.gguf"


def tiny_model(variant: str, sizes: Sizes = DEFAULT, dtype: torch.dtype = torch.float32) -> Model:
    return keyhole.load((tiny(variant, sizes, dtype), None))


def edge_name(wiring: Wiring, edge: int) -> str:
    """An edge in words, by its number."""
    writer, reader = wiring.edges[edge]
    return f"{wiring.writers[writer]} -> {wiring.readers[reader]}"


@pytest.fixture(scope="session")
def smollm2() -> Model:
    assert SMOLLM2.is_file(), "make test downloads this model; run it once"
    return keyhole.load(SMOLLM2)


@pytest.fixture(scope="session")
def organism() -> Model:
    return keyhole.load()


@pytest.fixture(scope="session")
def outcomes(organism: Model) -> list[Any]:
    from stores import outcomes_of_every_kind

    return outcomes_of_every_kind(organism)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bulk run that nothing interrupted."""
    from bulk_runs import N, command
    from commands import keyhole as typed

    path = tmp_path_factory.mktemp("whole") / "store"
    told = typed(*command(path))
    assert told.returncode == 0 and f"{N} prompts, {N} circuits" in told.stdout, told.stderr
    return path


@pytest.fixture
def gpt2() -> Model:
    return tiny_model("gpt2")


def prompts_of(model: Model, *lengths: int) -> list[list[int]]:
    return [random_ids(model, n, seed=n) for n in lengths]


def rich_circuit(run: keyhole.Run, **options: Any) -> keyhole.Circuit:
    """A circuit with many firings: seeded by what the last attention layers write at the end, not by an MLP."""
    layers = run.model.attention_layers[-2:]
    direction = sum(attention_writes(run, layer)[-1] for layer in layers)
    return trace(run, metric=Probe(direction, len(run.layers)), **{"through": "heads", **options})
