"""The command line and Python do the same by default, and know the same choices."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

from keyhole import store
from keyhole.circuits.circuit import Circuit
from keyhole.cli import circuits, look, options
from keyhole.cli import verify as proof
from keyhole.cli.app import (
    backups,
    bulk,
    compare,
    contrast,
    curves,
    discover,
    families,
    shared,
    sinks,
    stability,
    tasks,
    where,
)
from keyhole.cli.generate import generate
from keyhole.cli.mcp import mcp as mcp_command
from keyhole.cli.models import basis as basis_command
from keyhole.cli.name import name as name_command
from keyhole.faithfulness import effects, sufficient
from keyhole.faithfulness.verification import verify
from keyhole.features.contrast import sums
from keyhole.features.contrast import sums as frames
from keyhole.features.contrast.studies import StudySettings
from keyhole.features.discovery.all_heads import SurveySettings, survey
from keyhole.features.discovery.discovery import DiscoverySettings
from keyhole.features.discovery.ica import Nonlinearity
from keyhole.features.discovery.keys import View
from keyhole.features.focus import focus
from keyhole.intervene.removal import CutMode, Mode
from keyhole.lab.basis import basis_study
from keyhole.lab.payload_task import Latents
from keyhole.lab.svf import SVFSettings
from keyhole.models.run import Run
from keyhole.naming import naming as naming_name
from keyhole.naming.llm import Patience
from keyhole.naming.naming import ExplainerName, JudgeName, Namers
from keyhole.qk.channels import channels
from keyhole.qk.controls import RotationSettings
from keyhole.qk.firings import find_firings
from keyhole.qk.omega import Basis
from keyhole.settings.agents import AgentSettings
from keyhole.settings.measuring import SufficientSettings
from keyhole.settings.stores import NameSettings, WhereSettings
from keyhole.store.engines import EngineName
from keyhole.studies import settings as of_studies
from keyhole.studies.comparison.compare import compare as comparison_compare
from keyhole.studies.curves.curves import curves as measure_curves
from keyhole.studies.directions.directions import shared as compare_heads
from keyhole.studies.settings import CompareSettings, FamilySettings, SharedSettings, SinkSettings, StabilitySettings
from keyhole.studies.stability.stability import stability as measure_stability
from keyhole.tasks import examples
from keyhole.tasks.things import BOXES_WORDINGS, LISTS_WORDINGS
from keyhole.tracing.answers import Likeliest
from keyhole.tracing.firing import Firing
from keyhole.tracing.svt import trace_svt
from keyhole.tracing.trace import trace, trace_many
from keyhole.tracing.why import explain, signal_vector
from keyhole_papers.catalogue import Paper
from keyhole_papers.command import reproduce as reproduce_command
from keyhole_papers.experiment import Choices

SAME = [
    (look.heads, find_firings, {"tau", "dest"}),
    (look.channels, channels, {"dest", "src", "basis"}),
    (look.channels, Run.channels, {"dest", "src", "basis"}),
    (circuits.explain, explain, {"dest", "src", "tau", "keys", "why_not"}),
    (circuits.explain, Run.explain, {"dest", "src", "tau", "keys", "why_not"}),
    (circuits.trace, trace_many, {"against"}),
    (circuits.trace, trace, {"target", "against"}),
    (circuits.trace, trace_svt, {"target", "against", "metric"}),
    (circuits.trace, Run.trace, {"target", "against"}),
    (circuits.trace, Run.sufficient, {"target", "against", "like", "counterfactual"}),
    (circuits.trace, sufficient, {"target", "against"}),
    (circuits.trace, SufficientSettings, {"level", "both_signs"}),
    (look.channels, RotationSettings, {"draws", "basis"}),
    (circuits.trace, Circuit.effects, {"like", "counterfactual", "text"}),
    (backups, Circuit.backups, {"like", "counterfactual"}),
    (circuits.trace, Circuit.story, {"like", "counterfactual"}),
    (bulk, store.bulk, {"what", "engine"}),
    (bulk, store.estimate, {"what", "engine"}),
    (bulk, store.BulkSettings, {"n", "seed", "choices", "part"}),
    (bulk, store.Ray, {"workers", "address"}),
    (families, FamilySettings, {"granularity", "side", "role", "weighted", "k", "most", "seed"}),
    (curves, measure_curves, {"store"}),
    (basis_command, basis_study, {"task", "prompts", "edges", "draws", "seed"}),
    (stability, measure_stability, {"store", "other"}),
    (stability, StabilitySettings, {"prompts", "roles", "seed"}),
    (proof.verify, verify, {"mode", "draws", "seed"}),
    (proof.verify, Circuit.verify, {"mode", "draws", "seed"}),
    (tasks, examples, {"n", "seed"}),
    (compare, comparison_compare, {"a", "b"}),
    (mcp_command, AgentSettings, {"any_model", "limit", "tokens"}),
    (compare, CompareSettings, {"members", "threshold", "mode", "draws", "seed"}),
    (sinks, SinkSettings, {"prompts", "tau", "draws", "controls", "seed"}),
    (shared, compare_heads, {"store", "other"}),
    (shared, SharedSettings, {"prompts", "draws", "seed"}),
    (discover, View, {"frame"}),
    (discover, survey, {"bos"}),
    (discover, SurveySettings, {"centre", "seed"}),
    (discover, DiscoverySettings, {"centre", "rank", "nonlinearity", "seed"}),
    (name_command, NameSettings, {"most", "random", "tokens", "seed", "folder"}),
    (name_command, Namers, {"explainer", "judge", "questions", "transcript", "price", "yes"}),
    (reproduce_command, Choices, {"dtype", "device", "as_printed", "revisions", "quick", "seed"}),
    (reproduce_command, Namers, {"explainer", "judge", "yes"}),
    (where, WhereSettings, {"top", "length", "tokens", "seed"}),
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
    both = set(at_the_command_line) & set(in_python) - {"model", "progress", "head", "prompts", "out", "files"}
    assert both - shared <= {"target", "channels", "edges"}, "a parameter of both that is not compared"


def test_settings_have_the_same_defaults() -> None:
    seek, name = defaults(naming_name.seek), defaults(naming_name.name)
    assert {key: name[key] for key in seek} == seek
    assert name["explainer"].__name__ == defaults(name_command)["explainer"]
    assert (defaults(name_command)["llm_tries"], defaults(name_command)["llm_per_minute"]) == (
        Patience().tries,
        Patience().per_minute,
    )
    assert defaults(generate)["strength"] == defaults(focus)["strength"]
    assert all(defaults(circuits.trace)[f"top_{name}"] is default for name, default in defaults(Likeliest).items())


def test_a_method_has_the_signature_of_its_function() -> None:
    """Names, order, kinds, defaults; what a method adds is told."""
    for method, function, more in [
        (Run.explain, explain, {}),
        (Run.trace, trace, {}),
        (Run.firings, find_firings, {}),
        (Run.channels, channels, {}),
        (Circuit.verify, verify, {}),
        (Circuit.effects, effects, {}),
        (Firing.vector, signal_vector, {}),
    ]:
        own, its = (list(inspect.signature(one).parameters.values())[1:] for one in (method, function))
        told = {p.name: p.default for p in own if p.name not in {q.name for q in its}}
        shared = [p for p in own if p.name not in more]
        assert told == more
        assert [(p.name, p.kind, p.default) for p in shared] == [(p.name, p.kind, p.default) for p in its], method


def test_choices_are_the_librarys() -> None:
    settings = get_type_hints(SVFSettings)
    for name, of_library in {
        "Basis": get_args(Basis),
        "Mode": get_args(Mode),
        "CutMode": get_args(CutMode),
        "Frame": get_args(frames.Frame),
        "Centre": get_args(sums.Centre),
        "Balance": get_args(sums.Balance),
        "Nonlinearity": get_args(Nonlinearity),
        "Latents": get_args(Latents),
        "Paper": get_args(Paper),
        "Reduction": get_args(settings["recon_reduction"]),
        "QueryMode": get_args(settings["query_mode"]),
        "EngineName": get_args(EngineName),
        "ExplainerName": get_args(ExplainerName),
        "JudgeName": get_args(JudgeName),
    }.items():
        assert get_args(getattr(options, name)) == of_library, name
    assert get_args(of_studies.CutMode) == get_args(CutMode)
    for wordings in (BOXES_WORDINGS, LISTS_WORDINGS):
        assert set(get_args(options.Wording)) == set(wordings)
