"""Does `keyhole name` ask a model as it is told? Over real HTTP: costs first, nothing twice, refusals in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from commands import keyhole as command
from keyhole import KeyholeError
from keyhole.naming.llm import Endpoint
from keyhole.naming.llm.endpoint import KEYS
from keyhole.naming.llm.post import Answered, post
from keyhole.naming.record import load_naming
from misbehaving import RULE, Body, Said, Server, completion, knows_the_rule, serving

FEW = ("--most", "3", "--random", "2", "--tokens", "2000", "--llm-model", "tiny", "--llm-tries", "1")
BOTH = ("--explainer", "llm", "--judge", "llm")


def ask(server: Server, folder: Path, *more: str) -> Any:
    return command("name", "3.1", *FEW, "--llm", server.url, *more, folder=folder)


def said(folder: Path, name: str = "names.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_server_that_dies_is_paid_for_the_rest_alone(tmp_path: Path) -> None:
    """The same command again asks for what is missing, and comes to what one run would have."""
    dead = 30
    paid: list[str] = []

    def dies(number: int, body: Body) -> Said:
        if number >= dead:
            return Said(content=None)
        paid.append(body["messages"][1]["content"])
        return knows_the_rule(number, body)

    with serving(dies) as server:
        stopped = ask(server, tmp_path, *BOTH)
        assert stopped.returncode == 2 and not stopped.stdout and "Traceback" not in stopped.stderr
        assert "are kept in names.jsonl" in stopped.stderr and len(said(tmp_path)) == dead
    with serving(knows_the_rule) as server:
        done = ask(server, tmp_path, *BOTH, "--out", "names.json")
        assert done.returncode == 0, done.stderr
        asked = [body["messages"][1]["content"] for body in server.bodies]
        assert asked and not set(asked) & set(paid) and len(set(asked)) == len(asked) == len(said(tmp_path)) - dead
        assert f"({dead} more are answered)" in done.stderr
    with serving(lambda number, body: Said(500, b"")) as server:
        again = ask(server, tmp_path, *BOTH)
        assert again.returncode == 0 and not server.bodies and "note: 0 requests" in again.stderr
        assert again.stdout in done.stdout
    with serving(knows_the_rule) as server:
        once = ask(server, tmp_path, *BOTH, "--transcript", "other.jsonl", "--json")
        assert json.loads(once.stdout) == json.loads((tmp_path / "names.json").read_text())
    found = load_naming(tmp_path / "names.json")
    assert found.explainer == "tiny" and {one.name.text for one in found.signals} == {RULE}


def test_the_cost_is_told_before_anything_is_asked_and_much_is_refused(tmp_path: Path) -> None:
    with serving(lambda number, body: Said(500, b"")) as server:
        much = ask(server, tmp_path, *BOTH, "--most", "32", "--random", "200", "--price", "2", "10")
        assert much.returncode == 2 and not server.bodies and not much.stdout
        told, refused = much.stderr.splitlines()
        assert told.startswith("note: ") and "requests, about" in told and "at most about" in told
        assert re.search(r"up to [\d,]+ tokens, more than 1,000,000: allow it with --yes", refused)


def test_a_model_names_and_rules_judge_or_the_other_way(tmp_path: Path) -> None:
    def words(number: int, body: Body) -> Said:
        asked = body["messages"][1]["content"]
        return completion('PATTERN: dest is "the"') if "The signal fires" in asked else completion("No")

    with serving(words) as server:
        one = ask(server, tmp_path, "--explainer", "llm", "--json")
        found = json.loads(one.stdout)["naming"]
        assert len(server.bodies) == 5 and found["explainer"] == "tiny"  # three signals, two random directions
        tests = [test for signal in found["signals"] for test in signal["tests"] if test["kind"] == "detection"]
        assert tests and all(test["unanswered"] == 0 for test in tests)  # by rule
        assert max(test["questions"] for test in tests) > 20
    with serving(words) as server:
        other = json.loads(ask(server, tmp_path, "--judge", "llm", "--json").stdout)["naming"]
        assert other["explainer"] == "statistics" and all(
            "Rule: " in b["messages"][1]["content"] for b in server.bodies
        )
        top = [t for s in other["signals"] for t in s["tests"] if (t["kind"], t["of"]) == ("detection", "top")]
        assert top and all(
            test["right"] == test["questions"] / 2 and test["questions"] <= 20 for test in top
        )  # always no
        kinds = {test["kind"] for signal in other["signals"] for test in signal["tests"]}
        assert kinds == {"detection", "fuzzing", "intruder", "examples"}  # the others stay a rule's


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--explainer", "llm"], "give both"),
        (["--judge", "llm", "--llm", "http://a/v1"], "give both"),
        (
            ["--llm", "http://a/v1", "--llm-model", "b"],
            "--llm has no use without --explainer llm or --judge llm: give one of them or both",
        ),
        (["--judge", "llm", "--llm", "a", "--llm-model", "b"], "should look like https://host/v1"),
        ([*BOTH, "--llm", "http://a/v1", "--llm-model", "b", "--llm-key", "NO_SUCH_KEY"], "NO_SUCH_KEY, which is not"),
        ([*BOTH, "--llm", "http://a/v1", "--llm-model", "b", "--transcript", "a.txt"], "should end in"),
        ([*BOTH, "--llm", "http://a/v1", "--llm-model", "b", "--beside", "3.1:2"], "--beside is for one"),
    ],
)
def test_bad_requests_are_one_line_before_any_work(args: list[str], says: str, tmp_path: Path) -> None:
    told = command("name", "3.1:4" if "--beside" in args else "3.1", *args, folder=tmp_path)
    assert told.returncode == 2 and says in " ".join(told.stderr.split()) and not told.stdout
    assert "Traceback" not in told.stderr and not list(tmp_path.iterdir())


def test_the_key_is_of_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS[1], "usual")
    monkeypatch.setenv("MY_KEY", "own")
    with serving(knows_the_rule) as server:
        body = {"messages": [{}, {"content": "The signal fires"}]}
        for keys in (KEYS, ("MY_KEY",), ("NO_SUCH_KEY",)):
            assert isinstance(post(Endpoint(server.url, "tiny", keys=keys), body), Answered)
        assert [one.get("Authorization") for one in server.headers] == ["Bearer usual", "Bearer own", None]
    with serving(lambda number, body: Said(401, b"{}")) as server, pytest.raises(KeyholeError, match="set MY_KEY in"):
        post(Endpoint(server.url, "tiny", keys=("MY_KEY",)), body)
