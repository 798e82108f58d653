"""What a user meets first: names, signatures, tables, pages and pictures."""

import html
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Unpack, get_args, get_origin
from urllib.parse import unquote, urlparse

import numpy as np
import pytest
import torch

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import Circuit, KeyholeError, Model, Run
from keyhole.circuits import from_json
from keyhole.circuits.text import node_label
from keyhole.figures import attention_figure
from keyhole.qk import find_firings
from keyhole.studies import families, sinks
from keyhole.studies.curves.curves import curves
from keyhole.studies.curves.splits import splits
from keyhole.studies.directions.directions import shared
from keyhole.studies.stability.stability import stability
from keyhole.tracing import trace_svt
from keyhole.web import notebook as browser

PROMPT = "When Mary and John went to the store, John gave a drink to"
PACKAGES = ("circuits", "generation", "intervene", "models", "qk", "store", "studies.sinks", "tracing")


@pytest.fixture(scope="module")
def run(organism: Model) -> Run:
    return organism.run(PROMPT)


@pytest.fixture(scope="module")
def circuit(run: Run) -> Circuit:
    return run.trace("Mary", against="John", through="heads")


@pytest.mark.parametrize("name", [*PACKAGES, "features.discovery"])
def test_no_public_name_hides_a_module(name: str) -> None:
    package = importlib.import_module(f"keyhole.{name}")
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert package.__all__ == sorted(package.__all__, key=_sorting) and not modules & set(package.__all__)
    assert all(not inspect.ismodule(getattr(package, public)) for public in package.__all__)


def _sorting(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


OPEN = ("keyhole.features", "keyhole.lab", "keyhole.tasks")  # some hand keywords on to what is called by a name
SURFACE: dict[str, list[str]] = json.loads((Path(__file__).parent / "goldens" / "surface.json").read_text())


@pytest.mark.parametrize("name", SURFACE)
def test_signatures_are_explicit_and_short(name: str) -> None:
    """At most four parameters by position, and seven in all; keywords beyond those are fields of a record."""
    package = importlib.import_module(name)
    for public in SURFACE[name]:
        for function in _functions(getattr(package, public)):
            parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
            fields = [p for p in parameters if p.kind is p.VAR_KEYWORD]
            named = all(get_origin(p.annotation) is Unpack for p in fields)
            assert named or function.__module__.startswith(OPEN), function
            assert all(p.annotation is not p.empty for p in parameters), function
            by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            assert len(by_place) <= 4, function
            assert len(parameters) - len(fields) <= 7, function


def _functions(public: object) -> list[Callable[..., object]]:
    """A function, or the methods that a class writes itself."""
    if inspect.isclass(public):
        own = [getattr(m, "__func__", m) for name, m in vars(public).items() if not name.startswith("_")]
        return [m for m in own if inspect.isfunction(m) and m.__name__ != "<lambda>"]  # those are defaults of fields
    return [public] if inspect.isfunction(public) else []


def test_circuits_come_back_from_files(organism: Model, circuit: Circuit, tmp_path: Path) -> None:
    circuit.save(tmp_path / "mary.json")
    loaded = Circuit.load(tmp_path / "mary.json")
    assert loaded == circuit == from_json(circuit.to_json())
    with pytest.raises(KeyholeError, match="give the model that made it"):
        loaded.verify(draws=0, edges=False)
    assert loaded.verify(organism, draws=0, edges=False) == circuit.verify(draws=0, edges=False)


def test_signals_are_a_table(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    rows = circuit.to_dataframe()
    assert [row["weight"] for row in rows] == sorted((edge.weight for edge in circuit.edges), reverse=True)
    edges = {(edge.sender, edge.receiver, edge.side): edge for edge in circuit.edges}
    assert len(rows) == len(edges) == len(circuit.edges)
    for row in rows:
        edge = edges[row["source"], row["target"], row["side"]]
        writer = circuit.nodes[edge.sender]
        assert (row["ig"], row["alone"], row["channels"]) == (edge.ig, edge.alone, edge.channels)
        assert row["writer"] == node_label(writer, circuit.tokens)
        assert row["causes"] == node_label(circuit.nodes[edge.receiver], circuit.tokens)
        assert (row["kind"], row["layer"], row["dest"]) == (writer.kind, writer.layer, writer.dest)


def test_tables_are_dataframes_where_pandas_is(run: Run, circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = SimpleNamespace(from_records=lambda records: ("frame", records))
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=frame))
    made = [circuit.to_dataframe(), run.firings().to_dataframe()]
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert made == [("frame", circuit.to_dataframe()), ("frame", run.firings().to_dataframe())]


def test_firings_are_a_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    firings, plain = run.firings(0.3), find_firings(run, 0.3)
    assert list(firings) == plain and len(firings) == len(plain) > 30 and firings[-1] == plain[-1]
    assert list(run.firings(dest="gave")) == find_firings(run, dest="gave")
    lines = str(firings).splitlines()
    assert lines[0].split() == ["head", "dest", "src", "weight", "x", "uniform"]
    assert len(lines) == 32 and lines[-1] == f"and {len(plain) - 30} more"
    first, few = plain[0], firings[:3]
    told = [f"{first.layer}.{first.head}", f"{first.attention:.3f}", f"{first.times_uniform:.1f}"]
    assert [lines[1].split()[i] for i in (0, 3, 4)] == told
    assert len({line.rindex(" ") for line in lines[1:-1]}) <= 2  # numbers stand under each other
    assert str(few).splitlines()[-1].startswith(f"{plain[2].layer}.{plain[2].head}") and len(few) == 3
    assert repr(few) == f"<3 firings of {len({(s.layer, s.head) for s in plain[:3]})} heads>"
    row = firings.to_dataframe()[0]
    assert (row["layer"], row["src"], row["attention"]) == (first.layer, first.src, first.attention)
    assert row["src_token"] == run.tokens[first.src] and row["times_uniform"] == first.times_uniform
    assert str(run.firings(1.0, dest=1)[:0]).split() == lines[0].split()


def test_show_opens_the_page(circuit: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)) or True)
    page = circuit.show()
    assert [Path(unquote(urlparse(url).path)).read_text(encoding="utf-8") for url in opened] == [circuit.to_html()]
    assert len(repr(page)) < 200 and "organism" in repr(page)
    for left in tmp_path.iterdir():
        left.unlink()
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    with pytest.raises(KeyholeError, match=r"no browser.*circuit\.save"):
        circuit.show()
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_the_page_in_place(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    for shell, notebook in [(SimpleNamespace(kernel=1), True), (SimpleNamespace(), False), (None, False)]:
        monkeypatch.setattr(ipython, "get_ipython", lambda shell=shell: shell, raising=False)
        assert browser.in_notebook() is notebook
    monkeypatch.setattr(ipython, "get_ipython", lambda: SimpleNamespace(kernel=1))
    monkeypatch.setattr("webbrowser.open", lambda url: pytest.fail("a notebook needs no browser"))
    frame = circuit.show()._repr_html_()
    assert frame.startswith("<iframe") and html.unescape(frame.split('srcdoc="')[1].split('"')[0]) == circuit.to_html()


def test_a_picture_shows_a_heads_weights(run: Run) -> None:
    figure = run.plot((3, 6))
    axis = figure.axes[0]
    weights, drawn = run.pattern(3)[6].numpy(), np.ma.filled(axis.images[0].get_array(), np.nan)
    seen = np.tri(len(run), dtype=bool)
    assert np.array_equal(np.isnan(drawn), ~seen) and np.array_equal(drawn[seen], weights[seen].astype(float))
    names = [f"{place}:{token.strip()}" for place, token in enumerate(run.tokens)]
    assert [t.get_text() for t in axis.get_xticklabels()] == names == [t.get_text() for t in axis.get_yticklabels()]
    assert "3.6" in axis.get_title(loc="left") and "src" in axis.get_xlabel() and "dest" in axis.get_ylabel()
    with pytest.raises(KeyholeError, match=r"no head 3\.40"):
        run.plot((3, 40))


def test_a_picture_of_a_window_and_of_many_tokens() -> None:
    """What lies before the window is as unseen as what comes later; of many tokens some are named."""
    model = tiny_model("mistral")
    run = model.run(prompts_of(model, 20)[0])
    axis = run.plot((0, 1)).axes[0]
    first = run.attention_run(0).first.tolist()
    drawn = np.ma.getmaskarray(np.ma.masked_invalid(axis.images[0].get_array()))
    assert any(first) and [row.tolist().index(False) for row in drawn] == first
    many = attention_figure(torch.eye(90), ["word"] * 90).axes[0]
    assert list(many.get_xticks()) == list(many.get_yticks()) == list(range(0, 90, 2))
    with pytest.raises(KeyholeError, match="2 tokens have 2 x 2 weights, not 3 x 3"):
        attention_figure(torch.eye(3), ["a", "b"])


def test_what_a_method_would_not_heed_is_refused(run: Run) -> None:
    assert run.trace("Mary", against="John", method="svt") == trace_svt(run, "Mary", against="John")
    with pytest.raises(KeyholeError, match="settings of the method accpp"):
        run.trace("Mary", method="svt", first_token="collapse")


def test_the_circuits_of_many_prompts(organism: Model, circuit: Circuit) -> None:
    (together,) = keyhole.trace_many([organism.run(PROMPT)], ["Mary"], against=["John"], through="heads")
    assert together == circuit


@pytest.mark.parametrize(
    "function",
    [
        Run.trace,
        Run.explain,
        Run.sufficient,
        Circuit.story,
        Run.next,
        Model.run,
        Model.run_many,
        keyhole.load,
        keyhole.bulk,
        keyhole.trace_many,
    ],
    ids=lambda function: function.__qualname__,
)
def test_help_explains_every_parameter(function: Callable[..., object]) -> None:
    written = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    parameters = [parameter for name, parameter in inspect.signature(function).parameters.items() if name != "self"]
    stars = {inspect.Parameter.VAR_KEYWORD: "**"}
    explained = re.findall(r"^    ([*\w]+): \S+ \S+", written, re.MULTILINE)
    assert explained == [stars.get(parameter.kind, "") + parameter.name for parameter in parameters]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:  # settings given by name: a list
            (options,) = get_args(parameter.annotation)
            assert re.findall(r"^ +- `(\w+)`: \S+ \S+", written, re.MULTILINE) == list(options.__annotations__)


STUDIES = [
    *(getattr(package, name) for package in (families, sinks) for name in package.__all__ if name.islower()),
    *(keyhole.compare, shared, stability, curves, splits),
]


@pytest.mark.parametrize("function", STUDIES, ids=lambda function: function.__qualname__)
def test_help_of_studies_has_an_example(function: Callable[..., object]) -> None:
    """Which runs: it is a doctest."""
    test_help_explains_every_parameter(function)
    assert "\n>>> " in (inspect.getdoc(function) or "")


def test_every_public_function_and_method_explains_its_parameters() -> None:
    """Each parameter has a line. Functions, and what the root's classes do, have an example that runs."""
    functions, methods = _public()
    assert len(functions) > 150 and len(methods) > 150
    stars = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    for name, function in {**functions, **methods}.items():
        written = inspect.getdoc(function) or ""
        arguments = written.partition("Args:\n")[2].partition("\n\n")[0]
        explained = re.findall(r"^    ([*\w]+): \S+", arguments, re.MULTILINE)
        parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
        assert explained == [stars.get(each.kind, "") + each.name for each in parameters if each.name != "cls"], name
    of_root = {name: method for name, method in methods.items() if name.partition(".")[0] in keyhole.__all__}
    for name, function in {**functions, **of_root}.items():
        assert ">>> " in (inspect.getdoc(function) or "") or name in WITHOUT_EXAMPLE, name


# They open a browser or a notebook; the last one refuses.
WITHOUT_EXAMPLE = ("Circuit.show", "Circuit.widget", "Firing.widget", "SvtSettings.require_no_metric")


def _public() -> tuple[dict[str, Callable[..., object]], dict[str, Callable[..., object]]]:
    """Functions of the public packages, and methods of their classes, by name."""
    functions, methods = {}, {}
    packages = [each.name for each in pkgutil.walk_packages(keyhole.__path__, "keyhole.") if each.ispkg]
    for package in ["keyhole", *(name for name in packages if not name.startswith(("keyhole.cli", "keyhole.web")))]:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            public = getattr(module, name)
            if inspect.isclass(public):
                methods.update({f"{name}.{method.__name__}": method for method in _functions(public)})
            elif inspect.isfunction(public):
                functions[f"{package}.{name}"] = public
    return functions, methods


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert set(dir(keyhole)) == {*keyhole.__all__, *keyhole._PACKAGES, "__version__"}
    assert not {"Any", "TYPE_CHECKING", "errors", "version"} & set(dir(keyhole))


def test_the_likeliest_next_tokens(run: Run, organism: Model) -> None:
    tokens = run.next()
    likely, order = run.logits[-1].double().softmax(-1).sort(descending=True)
    assert [token.id for token in tokens] == order[:5].tolist() and len(tokens) == 5
    assert [token.probability for token in tokens] == pytest.approx(likely[:5].tolist())
    assert tokens[0].text == "Mary" and tokens[0].logit == pytest.approx(float(run.logits[-1].max()))
    assert str(tokens).startswith("'Mary' 1, '") and repr(tokens[:1]) == "<next tokens: 'Mary' 1>"
    row = records(tokens.to_dataframe())[0]
    assert (row["id"], row["text"], row["probability"]) == (tokens[0].id, "Mary", tokens[0].probability)
    assert run.next(1, end="gave")[0].id == int(run.logits[run.position("gave")].argmax()) != tokens[0].id
    for k in (0, organism.dims.vocab + 1):
        with pytest.raises(KeyholeError, match=f"k is {k}, but the vocabulary has"):
            run.next(k)


def test_many_prompts_become_one_table(organism: Model) -> None:
    """Without targets, each prompt's likeliest next token is traced."""
    prompts = [PROMPT, PROMPT.replace("Mary", "Gloria")]
    circuits = keyhole.trace_many(organism.run_many(prompts))
    likeliest = [int(organism.run(prompt).logits[-1].argmax()) for prompt in prompts]
    assert [circuit.parameters.target_ids for circuit in circuits] == [(token,) for token in likeliest]
    rows = records(circuits.to_dataframe())
    assert len(rows) == sum(len(circuit.edges) for circuit in circuits)
    for index, circuit in enumerate(circuits):
        of_prompt = [row for row in rows if row["prompt"] == index]
        assert {row["answer"] for row in of_prompt} == {("Mary", "Gloria")[index]} and of_prompt[0]["error"] is None
        for name in ("writer", "causes", "weight", "side"):
            assert [row[name] for row in of_prompt] == [row[name] for row in records(circuit.to_dataframe())]


def test_a_prompt_that_cannot_be_traced_has_a_row_with_the_reason(organism: Model) -> None:
    unlikely = organism.run(PROMPT).logits[-1].argmin().item()
    circuits = keyhole.trace_many(organism.run_many([PROMPT, PROMPT]), [unlikely, "Mary"])
    (row,) = [row for row in records(circuits.to_dataframe()) if row["prompt"] == 0]
    assert row["text"] == PROMPT and row["error"] == str(circuits[0].error) and "nothing to trace" in row["error"]


def records(table: Any) -> list[dict[str, Any]]:
    return table if isinstance(table, list) else table.to_dict("records")
