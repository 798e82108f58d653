"""The server for agents, in a process of its own, by the SDK's own client: answers, refusals, files, and the protocol.

One process for all of this file, but for what needs another one.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters, stdio_client

import keyhole
from keyhole import KeyholeError, Model
from keyhole.agents.bodies import Answer
from keyhole.agents.files import Folder
from keyhole.agents.offered import Offered
from keyhole.agents.tools import TOOLS
from keyhole.circuits.files import from_json, to_json
from keyhole.cli.mcp import read_models
from keyhole.edits.files import typed_edit
from keyhole.generation import beside
from keyhole.requests.bodies import schema_of
from keyhole.settings.agents import AgentSettings
from keyhole.settings.claims import ClaimSettings
from keyhole.settings.fields import choices_of
from keyhole.settings.measuring import GenerateSettings, SufficientSettings
from keyhole.settings.tracing import TraceSettings
from keyhole.studies.settings import CompareSettings

pytestmark = pytest.mark.xdist_group("mcp")

PROMPT = "When Mary and John went to the store, John gave a drink to"
SOURCE = str(Path(keyhole.__file__).parents[1])  # of the library that is tested
ENVIRONMENT = {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
SECRET = "nobody should read this"
NULL = '"type": "null"'
SUFFICES = {"schema": 1, "kind": "suffices", "claim": "It suffices", "prompts": {"task": "ioi", "n": 14}}


@dataclass
class Agent:
    """A client of one server, from the thread of the tests."""

    portal: BlockingPortal
    client: Client
    folder: Path
    errors: Path  # what the server printed there
    strange: list[Exception]  # lines that were no messages
    steps: list[tuple[float, float | None, str | None]] = field(default_factory=list)

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        async def progress(done: float, total: float | None, words: str | None) -> None:
            self.steps.append((done, total, words))

        return await self.client.call_tool(name, arguments, progress_callback=progress)

    def ask(self, name: str, **arguments: Any) -> str:
        """A tool's answer."""
        self.steps.clear()
        result = self.portal.call(self._call, name, arguments)
        assert not result.is_error and len(result.content) == 1, result.content
        return str(result.content[0].text)

    def json(self, name: str, **arguments: Any) -> Any:
        return json.loads(self.ask(name, **arguments, form="json"))

    def refused(self, name: str, **arguments: Any) -> str:
        """The sentence with which a tool refuses."""
        result = self.portal.call(self._call, name, arguments)
        text = str(result.content[0].text)
        assert result.is_error and "Traceback" not in text and "\n" not in text and len(text) < 600, text
        return text

    def resource(self, name: str) -> list[str]:
        return [c.text for c in self.portal.call(self.client.read_resource, f"keyhole://circuits/{name}").contents]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with links, and a file beside it that nobody should read."""
    root = tmp_path_factory.mktemp("agents")
    inside, outside = root / "inside", root / "outside"
    for path in (inside, outside, inside / "sub", inside / ".hidden"):
        path.mkdir()
    circuit = to_json(keyhole.load().run(PROMPT).trace("Mary"))
    places = (outside / "secret.json", inside / ".hidden" / "c.json", inside / "sub" / "c.json", inside / "first.json")
    for path in places:
        path.write_text(circuit)
    (outside / "secret.txt").write_text(f"{SECRET}\n" * 9)
    for suffix in ("json", "jsonl", "toml", "txt", "html", "svg"):
        (inside / f"secret.{suffix}").symlink_to(outside / ("secret.json" if suffix == "json" else "secret.txt"))
        (inside / f"nowhere.{suffix}").symlink_to(outside / f"new.{suffix}")
        (inside / f"circle.{suffix}").symlink_to(f"circle.{suffix}")
    (inside / "beside").symlink_to(outside)
    (inside / "again.json").symlink_to("sub/c.json")
    (inside / "mine.json").write_text("{}")
    other = json.loads(circuit)
    (inside / "other.json").write_text(
        json.dumps(other | {"model": other["model"] | {"name": "gpt2", "fingerprint": "0" * 16}})
    )
    os.mkfifo(inside / "pipe.json")
    return inside


LOUD = f"""
import os, sys
from keyhole.agents import prompts
from keyhole.cli.app import main
explain, split = prompts.explain_firing, prompts.split_score
def loud(*places, **options):
    print("loud"); os.write(1, b"louder"); os.system("echo loudest")
    return explain(*places, **options)
def wrong(run, head, *places, **options):
    if head == (0, 7):
        raise ZeroDivisionError("{SECRET} of ours")
    return split(run, head, *places, **options)
prompts.explain_firing, prompts.split_score = loud, wrong
main()
"""  # `keyhole` with a library that prints, and has a fault in one place


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[Agent]:
    """By the handshake of older clients; docs/agents.md has the newer one."""
    command = ["-c", LOUD, "mcp", str(folder), "--model", "organism", "--model", "again=organism", "--tokens", "100"]
    server = StdioServerParameters(command=sys.executable, args=command, env=ENVIRONMENT)
    errors, strange = folder.parent / "errors.txt", list[Exception]()

    async def note(message: Any) -> None:
        if isinstance(message, Exception):  # a line that is no message
            strange.append(message)

    with errors.open("w") as log, start_blocking_portal() as portal:
        client = Client(stdio_client(server, errlog=log), mode="legacy", cache=None, message_handler=note)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal, client, folder, errors, strange)


# What does each tool take, and answer?


def test_tools_take_what_settings_say(agent: Agent) -> None:
    listed = {tool.name: tool for tool in agent.portal.call(agent.client.list_tools).tools}
    assert set(listed) == set(TOOLS) and len(listed) == 12
    from_records = [("trace", TraceSettings), ("sufficient", SufficientSettings), ("generate", GenerateSettings)]
    for name, record in (*from_records, ("compare", CompareSettings), ("claim", ClaimSettings)):
        known = listed[name].input_schema["properties"]
        for choice in choices_of(record):
            if (name, choice.name) in (("sufficient", "signals"), ("generate", "stop")):
                continue
            field = known[choice.name]
            assert field["description"] == choice.about["help"] and field.get("default") == choice.default
            assert field.get("minimum") == choice.about["least"] or choice.optional
            assert not choice.words or "enum" not in field or tuple(field["enum"]) == choice.words
    for tool in listed.values():
        assert tool.description and tool.input_schema["additionalProperties"] is False
        assert (tool.name in ("trace", "sufficient")) != tool.annotations.read_only_hint
        for name, field in tool.input_schema["properties"].items():
            assert NULL not in json.dumps(field) and (field.get("description") or tool.name == "contrast"), name
        model = tool.input_schema["properties"]["model"]
        assert model["enum"] == ["organism", "again"] and model.get("default") in ("organism", None)
    assert len(json.dumps([tool.model_dump(exclude_none=True) for tool in listed.values()])) < 30_000


def test_a_schema_says_nothing_of_null() -> None:
    assert all(NULL not in json.dumps(schema_of(tool.body)) for tool in TOOLS.values())


def test_answers_about_a_prompt_are_the_librarys(agent: Agent, organism: Model) -> None:
    run = organism.run(PROMPT)
    firing = run.explain((3, 6), src="gave", tau=0.2)
    assert agent.ask("explain", prompt=PROMPT, head="3.6", src="gave", tau=0.2) == str(firing)
    assert agent.json("explain", prompt=PROMPT, head="3.6", dest=14, src=11, tau=0.2)["sides"]
    firings, listed = run.firings(0.5), agent.json("heads", prompt=PROMPT, tau=0.5, first_token="keep", top=5)
    assert [f["attention"] for f in listed["shown"]] == pytest.approx([site.attention for site in firings[:5]])
    assert listed["firings"] == len(firings)
    split = run.channels((3, 6), src="gave")
    assert agent.json("channels", prompt=PROMPT, head="3.6")["sparsity"] == pytest.approx(split.sparsity)
    assert f"S(v) {split.sparsity:.3f} of 16" in agent.ask("channels", prompt=PROMPT, head="3.6", draws=2)
    assert "exact within" in agent.ask("check") and agent.json("check", prompt=PROMPT, model="again")["exact"]
    written = agent.json("explain_mlp", prompt=PROMPT, layer=3, target="Mary", against="John")
    write = run.explain_mlp(3, -1, run.toward("Mary", "John"))
    assert written["value"] == pytest.approx(write.record()["value"]) and written["removed"]["agrees"]
    assert "2:Mary" in agent.ask("heads", prompt=PROMPT, top=3) and "mlp 3" in agent.ask(
        "explain_mlp", prompt=PROMPT, layer=3
    )


def test_answers_with_edits_stand_beside_those_without(agent: Agent, organism: Model) -> None:
    edits = [typed_edit("1.6:5*-1"), typed_edit("mlp3*0")]
    text = agent.ask("generate", prompt=PROMPT, edits=["1.6:5*-1", "mlp3*0"], max_new_tokens=2, controls=0)
    assert text == str(beside(organism, PROMPT, edits, max_new_tokens=2)) and "change the answer" in text
    (agent.folder / "edits.json").write_text(keyhole.edits.files.to_json(edits))
    assert agent.ask("generate", prompt=PROMPT, edits="edits.json", max_new_tokens=2, controls=0) == text
    plain = agent.json("generate", prompt=PROMPT, max_new_tokens=2, stop="Mary")
    assert plain["text"].strip() == "Mary" and plain["settings"]["stop"] == ["Mary"]


def test_circuits_are_found_kept_and_tested(agent: Agent, organism: Model) -> None:
    run = organism.run(PROMPT)
    text = agent.ask("trace", prompt=PROMPT, target="Mary", against="John", faithfulness=False, out="mary.json")
    kept = keyhole.Circuit.load(agent.folder / "mary.json")
    assert kept == run.trace("Mary", against="John") and text.endswith("\nwrote mary.json") and "A branch: " in text
    document, tree = json.loads(agent.resource("mary.json")[1]), agent.resource("mary.json")[0]
    assert from_json(json.dumps(document)) == kept and tree in text
    small = agent.ask("sufficient", prompt=PROMPT, target="Mary", against="John", level=0.8, out="small.json")
    assert "edges that suffice" in small and "likeliest next tokens" in small
    proof = agent.ask("verify", circuit="mary.json", draws=1, edges=False)
    assert proof.startswith("Verification: organism") and "Causes: does the answer need" in proof
    result = kept.verify(organism, draws=1, edges=False)
    rows = agent.json("verify", circuit="mary.json", draws=1, edges=False)["rows"]
    assert [row["after"] for row in rows] == pytest.approx([row.after for row in result.rows], abs=1e-5)
    both = agent.json("compare", a="mary.json", b="small.json", model="again")
    assert both["a"] == "mary.json" and both["terms"]
    assert "a circuit of gpt2" in agent.refused("compare", a="mary.json", b="published:gpt2-ioi")
    # A circuit that was kept is replaced by the server that wrote it.
    agent.ask("trace", prompt=PROMPT, faithfulness=False, out="mary.json")
    assert keyhole.Circuit.load(agent.folder / "mary.json") == run.trace()


def test_prompts_like_one_come_from_a_file(agent: Agent) -> None:
    prompts = [example.text for example in keyhole.tasks.examples("ioi", n=60)]
    alike = [prompt for prompt in prompts if len(prompt.split()) == len(prompts[0].split())][:9]
    (agent.folder / "like.txt").write_text("\n".join(alike))
    from_file = agent.ask("sufficient", prompt=alike[0], like="like.txt", level=0.5)
    assert from_file == agent.ask("sufficient", prompt=alike[0], like=alike, level=0.5)


def test_a_contrast_is_studied(agent: Agent) -> None:
    small = {"prompts": 20, "tests": 10, "permutations": 19, "answers": 0, "draws": 1, "heads": ["2.0"]}
    assert "Query-key features: order" in agent.ask("contrast", what="boxes", feature="order", **small)


def test_a_claim_is_tested(agent: Agent, organism: Model) -> None:
    """By itself, and of a file: the tests of the library."""
    claim = {"schema": 1, "kind": "moves", "claim": "Head 1.6 moves IO", "head": "1.6", "src": "IO"}
    claim |= {"prompts": {"task": "ioi", "n": 14}}
    (agent.folder / "true.json").write_text(json.dumps(claim))
    result = keyhole.claim(organism, agent.folder / "true.json", draws=19, texts=4)
    assert agent.ask("claim", claim="true.json", draws=19, texts=4) == str(result)
    assert "Passes" in str(result)
    few = agent.json("claim", claim=claim | {"prompts": {"task": "ioi", "n": 6}}, draws=19)
    assert few["verdict"] == "fails" and few["claim"]["settings"]["draws"] == 19


def test_a_claim_names_a_circuit_of_the_folder(agent: Agent) -> None:
    text = 'schema = 1\nkind = "suffices"\nclaim = "It suffices"\ncircuit = "{}"\n[prompts]\ntask = "ioi"\nn = {}\n'
    cases = [("../first.json", "leads out"), ("/etc/passwd", "leads out"), ("none.json", "there is no file")]
    for circuit, reason in cases:
        (agent.folder / "sub" / "c.toml").write_text(text.format(circuit, 14))
        assert reason in agent.refused("claim", claim="sub/c.toml")
    (agent.folder / "sub" / "c.toml").write_text(text.format("c.json", 2000))
    assert "1,000 prompts" in agent.refused("claim", claim="sub/c.toml")


def test_circuit_files_are_listed(agent: Agent) -> None:
    listed = agent.portal.call(agent.client.list_resources).resources
    names = {resource.name for resource in listed}
    assert {"first.json", "sub/c.json", "other.json"} <= names
    assert not names & {"secret.json", "mine.json", "again.json", "pipe.json", ".hidden/c.json", "beside/secret.json"}
    assert all(resource.uri == f"keyhole://circuits/{resource.name}" and resource.size for resource in listed)
    assert agent.resource("sub%2Fc.json") == agent.resource("again.json")  # a link within the folder


def test_long_work_reports_how_far_it_is(agent: Agent) -> None:
    agent.ask("trace", prompt=PROMPT, target="Mary", effects=True)
    numbers = [done for done, *_ in agent.steps]
    assert len(numbers) >= 3 and numbers == sorted(set(numbers)) and all(d <= (t or 0) for d, t, _ in agent.steps)
    assert {"Tracing", "Measuring effects"} <= {(words or "").partition(":")[0] for *_, words in agent.steps}


# What is refused?


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("explain", {"head": "3.6"}, "needs prompt"),
        ("explain", {"prompt": PROMPT, "head": "3.6", "hed": 1}, "no 'hed'"),
        ("explain", {"prompt": PROMPT, "head": 3}, "head should be a text, not 3"),
        ("explain", {"prompt": PROMPT, "head": "3-6"}, "such as 3.6, not '3-6'"),
        ("explain", {"prompt": PROMPT, "head": "9.9"}, "9"),
        ("explain", {"prompt": PROMPT, "head": "3.6", "dest": "John"}, "ambiguous"),
        ("explain", {"prompt": PROMPT, "head": "3.6", "tau": 7}, "tau is 7"),
        ("heads", {"prompt": PROMPT, "top": 0}, "top should be at least 1"),
        ("heads", {"prompt": {"a": 1}}, "prompt should be"),
        ("heads", {"prompt": [1, "a"]}, "whole number"),
        ("heads", {"prompt": " ".join(["Mary"] * 110)}, "takes 100"),
        ("trace", {"prompt": PROMPT, "method": "magic"}, "'accpp' or 'svt'"),
        ("trace", {"prompt": PROMPT, "target": "Quetzalcoatl"}, "Quetzalcoatl"),
        ("trace", {"prompt": PROMPT, "out": "mary.exe"}, "should end in"),
        ("sufficient", {"prompt": PROMPT, "level": 2.0}, "level is 2"),
        ("sufficient", {"prompt": PROMPT, "like": "words", "counterfactual": PROMPT}, "two baselines"),
        ("generate", {"prompt": PROMPT, "edits": ["everything"]}, "is no edit"),
        ("generate", {"prompt": PROMPT, "edits": [{"kind": "magic"}]}, "magic"),
        ("generate", {"prompt": PROMPT, "max_new_tokens": 90}, "takes 100 together"),
        ("claim", {"claim": {"schema": 1, "kind": "believes"}}, "choose one of moves"),
        ("claim", {"claim": SUFFICES}, "needs it"),
        ("contrast", {"what": "circles"}, "should end in .jsonl"),
        ("verify", {"circuit": "mine.json"}, "not a circuit"),
        ("verify", {"circuit": "first.json", "mode": "magic"}, "'exact'"),
        ("verify", {"circuit": "sub"}, "should end in"),
        ("verify", {"circuit": "none.json"}, "Circuits in it: "),
        ("compare", {"a": "first.json", "b": "published:nothing"}, "nothing"),
        ("check", {"form": "xml"}, "form should be 'text' or 'json'"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(
    agent: Agent, name: str, arguments: dict[str, Any], reason: str
) -> None:
    assert reason in agent.refused(name, **arguments)


def test_an_unknown_tool_is_the_protocols_error(agent: Agent) -> None:
    with pytest.raises(MCPError, match="no tool 'rm'"):
        agent.ask("rm")


@pytest.mark.parametrize("model", ["gpt2", "/etc", "../organism", "organism/", ".", ""])
def test_models_that_were_not_given_are_refused(agent: Agent, model: str) -> None:
    """A hub name, which would be downloaded; folders."""
    assert "offers organism, again" in agent.refused("check", model=model)


def test_a_circuits_file_does_not_choose_the_model(agent: Agent) -> None:
    """It may name anything: a model of the hub would be downloaded."""
    assert "say with model which" in agent.refused("verify", circuit="other.json")
    assert "weights" in agent.refused("verify", circuit="other.json", model="again")
    assert "say with model which" in agent.refused("compare", a="other.json", b="first.json")


OUTSIDE = [
    *("../outside/secret", "sub/../../outside/secret", "secret", "beside/secret", "nowhere", "circle", "C:\\secret"),
    *("..\\secret", ".hidden/c", "sub/../.hidden/c", "\0", "~/secret"),
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_files_outside_are_neither_read_nor_written(agent: Agent, name: str) -> None:
    kept = sorted(agent.folder.parent.rglob("*"))
    reads = [
        *[("verify", {"circuit": f"{name}.json"}), ("compare", {"a": "first.json", "b": f"{name}.json"})],
        *[("compare", {"a": f"{name}.json", "b": "first.json"}), ("contrast", {"what": f"{name}.jsonl"})],
        *[("generate", {"prompt": PROMPT, "edits": [f"{name}.json"]}), ("claim", {"claim": f"{name}.toml"})],
        *[("claim", {"claim": SUFFICES | {"circuit": f"{name}.json"}})],
        *[("sufficient", {"prompt": PROMPT, "like": f"{name}.txt"})],
    ]
    for tool, arguments in reads:
        assert SECRET not in refused_as_outside(agent, tool, **arguments)
    for suffix in (".json", ".html", ".svg"):
        refused_as_outside(agent, "trace", prompt=PROMPT, out=f"{name}{suffix}")
    refused_as_outside(agent, "sufficient", prompt=PROMPT, out=f"{name}.json")
    with pytest.raises(MCPError) as caught:
        agent.resource(f"{name}.json".replace("\0", "%00"))
    assert refers_to_no_place(str(caught.value))
    assert sorted(agent.folder.parent.rglob("*")) == kept


def refused_as_outside(agent: Agent, tool: str, **arguments: Any) -> str:
    sentence = agent.refused(tool, **arguments)
    assert refers_to_no_place(sentence), sentence
    return sentence


def refers_to_no_place(sentence: str) -> bool:
    words = ("leads out of the folder", "is hidden", "no name of a file", "leads to no file", "there is no file")
    words += ("there is no folder", "needs a folder", "this server did not write it")
    return any(word in sentence for word in words)


@pytest.mark.parametrize("name", ["/etc/passwd", "/etc/passwd.json"])
def test_absolute_paths_are_refused(agent: Agent, name: str) -> None:
    assert "leads out of the folder" in agent.refused("verify", circuit=name)
    inside = agent.folder / "first.json"
    assert "leads out of the folder" in agent.refused("verify", circuit=str(inside))


def test_what_others_wrote_is_not_replaced(agent: Agent) -> None:
    before = (agent.folder / "mine.json").read_text()
    for name in ("mine.json", "first.json", "again.json", "sub/c.json"):
        assert "did not write it" in agent.refused("trace", prompt=PROMPT, out=name)
    assert (agent.folder / "mine.json").read_text() == before


def test_a_pipe_is_no_file(agent: Agent) -> None:
    """Reading would wait for ever."""
    assert "is no file" in agent.refused("verify", circuit="pipe.json")


def test_sentences_name_files_as_agents_do(agent: Agent) -> None:
    assert str(agent.folder) not in agent.refused("verify", circuit="mine.json")
    assert "mine.json is not a circuit" in agent.refused("verify", circuit="mine.json")


# Long answers, and work that is not wanted any more.


def test_a_long_answer_is_written_to_a_file(agent: Agent, organism: Model) -> None:
    text = agent.ask("trace", prompt=PROMPT, form="json", faithfulness=False)
    head, name = text.split("\n")[0], text.partition("is in ")[2].partition(". In short")[0]
    assert len(text) < 20_000 and "characters, and at most 20,000 are sent" in head and "answer at 14:to" in text
    assert keyhole.Circuit.load(agent.folder / name) == organism.run(PROMPT).trace()
    assert agent.ask("trace", prompt=PROMPT, form="json", faithfulness=False) == text  # into the same file


def test_a_long_text_is_cut_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = Offered(Folder.of(tmp_path), {"organism": "organism"}, AgentSettings(limit=1000))
    long = Answer("a line\n" * 1000, {"a": 1}, ("x.json",))
    text = offered.bounded("heads", long, "text")
    (kept,) = tmp_path.iterdir()
    assert kept.read_text() == long.text and kept.name in text and len(text) < 1300 and text.endswith("wrote x.json")
    assert offered.bounded("heads", long, "json") == '{"a":1}'
    monkeypatch.setattr("keyhole.agents.offered.write_at_once", fails)
    assert "could not be kept: no room" in offered.bounded("heads", long, "text")


def fails(path: Path, text: str) -> None:
    raise keyhole.errors.UnwritableError("no room.")


def test_a_cancelled_call_stops_and_the_next_is_answered(agent: Agent) -> None:
    """The study would take minutes."""
    agent.ask("check")
    agent.steps.clear()
    call = agent.portal.start_task_soon(agent._call, "contrast", {"what": "boxes", "prompts": 2000, "tests": 2000})
    while not agent.steps:
        time.sleep(0.01)
    call.cancel()
    began = time.monotonic()
    with pytest.raises(CancelledError):
        call.result()
    agent.ask("trace", prompt=PROMPT, faithfulness=False)  # it waits in the same queue
    assert time.monotonic() - began < 15


def test_a_call_that_waits_is_cancelled_too(agent: Agent) -> None:
    first = agent.portal.start_task_soon(agent._call, "contrast", {"what": "boxes", "prompts": 2000, "tests": 2000})
    second = agent.portal.start_task_soon(agent._call, "trace", {"prompt": PROMPT, "out": "never.json"})
    time.sleep(0.2)
    for call in (second, first):
        call.cancel()
    agent.ask("check")
    assert not (agent.folder / "never.json").exists()


# The protocol, and what stands outside of it.


def test_standard_output_belongs_to_the_protocol(agent: Agent) -> None:
    """What the library, the system and its programs print goes to standard error."""
    agent.ask("explain", prompt=PROMPT, head="3.6")
    assert all(word in agent.errors.read_text() for word in ("loud\n", "louder", "loudest"))
    assert not agent.strange


def test_a_fault_of_ours_is_a_sentence(agent: Agent) -> None:
    """The traceback is for whoever started the server."""
    sentence = agent.refused("channels", prompt=PROMPT, head="0.7")
    assert "wrong inside Keyhole (ZeroDivisionError)" in sentence and SECRET not in sentence
    errors = agent.errors.read_text()
    assert "Traceback" in errors and f"{SECRET} of ours" in errors
    assert "exact" in agent.ask("check")  # it goes on


# What whoever starts it chooses.


def test_any_model_is_for_whoever_starts_it(tmp_path: Path) -> None:
    offered = Offered(Folder.of(tmp_path), {"small": "/models/small"}, AgentSettings(any_model=True))
    assert offered.source("gpt2") == "gpt2" and offered.source("small") == "/models/small"
    assert offered.source("organism") is None and offered.given.first == "small"
    assert "enum" not in TOOLS["check"].schema(offered)["properties"]["model"]
    assert TOOLS["check"].schema(offered)["properties"]["model"]["default"] == "small"


def test_models_are_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()
    assert read_models(["small=m.gguf", "gpt2"]) == {"small": str(tmp_path / "m.gguf"), "gpt2": "gpt2"}
    for texts, reason in ((["a=b", "a=c"], "twice"), (["a="], "NAME=PATH"), ([" "], "NAME=PATH")):
        with pytest.raises(KeyholeError, match=reason):
            read_models(texts)
