"""The command line and Python do the same by default, and know the same choices."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

from keyhole.cli import choices, circuits, contrast, discover, look
from keyhole.contrast.onepass import frames, sums
from keyhole.contrast.studies import StudySettings
from keyhole.discover import fit
from keyhole.discover.attended import View
from keyhole.discover.ica import Nonlinearity
from keyhole.discover.survey import survey
from keyhole.intervene.remove import Mode
from keyhole.intervene.verify import verify
from keyhole.lab.payload.task import Latents
from keyhole.lab.svf.toy import SVFSettings
from keyhole.models.run import Run
from keyhole.qk.channels import channels
from keyhole.qk.firings import find_firings
from keyhole.qk.omega import Basis
from keyhole.reproduce.catalogue import Paper
from keyhole.tasks import boxes, lists
from keyhole.tracing.assemble import Seeds, Sinks
from keyhole.tracing.candidates import Keys
from keyhole.tracing.firing import explain
from keyhole.tracing.svt import trace_svt
from keyhole.tracing.trace import trace_many

SAME = [
    (look.heads, find_firings, {"tau", "dest"}),
    (look.channels, channels, {"dest", "src", "basis"}),
    (look.channels, Run.channels, {"dest", "src", "basis"}),
    (circuits.explain, explain, {"dest", "src", "tau", "keys"}),
    (circuits.explain, Run.explain, {"dest", "src"}),
    (circuits.trace, trace_many, {"against", "seeds", "seed_tau", "top_p", "top_k", "tau", "keys", "sinks"}),
    (circuits.trace, trace_svt, {"target", "against", "seeds", "seed_tau", "top_p", "top_k"}),
    (circuits.trace, Run.trace, {"target", "method"}),
    (circuits.verify, verify, {"mode", "draws", "seed"}),
    (discover, View, {"frame"}),
    (discover, survey, {"centre", "seed", "bos"}),
    (discover, fit.discover, {"centre", "rank", "nonlinearity", "seed"}),
    (
        contrast,
        StudySettings,
        {"rank", "frame", "centre", "balance", "negatives", "permutations", "draws", "answers", "seed"},
    ),
]


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Of every parameter; a position is written as text at the command line."""
    found = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    return {name: str(value) if name == "dest" and value is not None else value for name, value in found.items()}


@pytest.mark.parametrize(("command", "function", "shared"), SAME, ids=lambda value: getattr(value, "__qualname__", ""))
def test_defaults_agree(command: Callable[..., Any], function: Callable[..., Any], shared: set[str]) -> None:
    at_the_command_line, in_python = defaults(command), defaults(function)
    assert {name: at_the_command_line[name] for name in shared} == {name: in_python[name] for name in shared}
    both = set(at_the_command_line) & set(in_python) - {"model", "progress", "head", "prompts"}
    assert both - shared <= {"target", "channels", "edges"}, "a parameter of both that is not compared"


def test_choices_are_the_librarys() -> None:
    settings = get_type_hints(SVFSettings)
    for name, of_library in {
        "Basis": get_args(Basis),
        "Keys": get_args(Keys),
        "Sinks": get_args(Sinks),
        "SeedRule": get_args(get_args(Seeds)[0]),
        "Mode": get_args(Mode),
        "Frame": get_args(frames.Frame),
        "Centre": get_args(sums.Centre),
        "Balance": get_args(sums.Balance),
        "Nonlinearity": get_args(Nonlinearity),
        "Latents": get_args(Latents),
        "Paper": get_args(Paper),
        "Reduction": get_args(settings["recon_reduction"]),
        "QueryMode": get_args(settings["query_mode"]),
        "Method": get_args(get_type_hints(Run.trace, {**vars(inspect.getmodule(Run)), **_NAMES})["method"]),
    }.items():
        assert get_args(getattr(choices, name)) == of_library, name
    for task in (boxes, lists):
        wordings = inspect.getmodule(task)._WORDINGS  # type: ignore[union-attr]
        assert set(get_args(choices.Wording)) == set(wordings)


_NAMES = {"Target": Any, "Circuit": Any}
