"""Does a model name and judge signals as told, and is nothing lost that was paid for? Over real HTTP, misbehaving."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from keyhole import KeyholeError
from keyhole.naming.judge.judge import RULES, Answer
from keyhole.naming.judge.questions import Marked, Question
from keyhole.naming.llm import (
    Endpoint,
    Patience,
    Price,
    Prompting,
    Talk,
    estimate,
    llm_explainer,
    llm_judges,
    open_transcript,
    with_model,
)
from keyhole.naming.llm.asking import explain_request, judge_request, read_answer, read_name, shown_text
from keyhole.naming.llm.endpoint import KEYS, Reply, Request, about_tokens, chance, read_reply
from keyhole.naming.llm.post import client, send, send_all
from keyhole.naming.naming import Namers, require_namers
from keyhole.naming.record import Naming
from keyhole.naming.signals import name_signals
from keyhole.naming.subjects.subject import HARD, Examples, Shown, Subject
from misbehaving import RULE, Body, Said, Server, completion, document, failure, knows_the_rule, serving

QUICK = Patience(timeout=20, tries=3, wait=0.01, longest=1.0, workers=3)
NAMES, FILL = ("Mary", "John", "Anna", "Tom"), ("the", "store", "and", "drink", "went", "gave")
DETECT = Question("detection", (Marked(("Mary", " gave", " it", " to"), 3, 0),))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def talking(
    folder: Path, behaviour: Callable[[int, Body], Said], patience: Patience = QUICK, **settings: Any
) -> Iterator[tuple[Talk, Server]]:
    with serving(behaviour) as server, open_transcript(folder / "said.jsonl") as transcript:
        yield Talk(Endpoint(server.url, "tiny", patience), transcript, **settings), server


def in_turn(*said: Said) -> Callable[[int, Body], Said]:
    """One after the other; the last for ever."""
    return lambda number, body: said[min(number, len(said) - 1)]


def ask(number: int = 0) -> Request:
    return Request("tiny", "Be brief.", f"Question {number}?", 5, logprobs=True)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "said.jsonl").read_text().splitlines()]


def text_of(i: int) -> tuple[str, ...]:
    words = [FILL[(i * k + k) % len(FILL)] for k in range(1, 7)]
    return (NAMES[i % 4], *(f" {word}" for word in words), " to", f" {FILL[i % 6]}", f" n{i}")


def signal(id: str, head: tuple[int, int]) -> Examples:
    """Fires from "to" to a name: what the server's model says of every signal."""
    shown = [Shown(i, text_of(i), 7, 0, 9.0 - i / 100, 0.5, "top") for i in range(40)]
    shown += [Shown(i, text_of(i), 7, 3, 0.0, 0.1, "wrong src") for i in range(40)]
    shown += [Shown(i, text_of(i), 6, 0, 0.0, 0.6, "other channels") for i in range(60, 80)]
    shown += [Shown(i, text_of(i), 5, 2, 0.0, 0.1, "random") for i in range(80, 120)]
    subject = Subject(id, "signal", head, torch.zeros(2), torch.zeros(2))
    return Examples(subject, tuple(shown), 120, 1200, 0.1)


SIGNALS = [signal("a", (0, 0)), signal("b", (1, 1))]


def naming(explainer: Any, judges: Any) -> Naming:
    return name_signals(SIGNALS, explainer, judges, model="tiny")


# What is asked, and how answers are read


def test_marks_are_two_and_the_texts_own_brackets_are_none() -> None:
    assert shown_text(Marked(("a", " [[", "[", " b", "}}", " c"), 4, 3)) == "a [ [ [ {{b}}[[} }]]"
    assert shown_text(Marked((" go", " there"), 0, 0)) == "[[{{go}}]]"
    assert shown_text(Marked(("a", " ", "b", "hidden"), 2, 1)) == "a{{ }}[[b]]"
    for i in range(120):
        told = shown_text(Marked(text_of(i), 7, 3))
        assert (told.count("[["), told.count("{{")) == (1, 1) and f"n{i}" not in told  # nothing after dest


def test_the_explainer_sees_the_largest_and_hard_negatives_first(tmp_path: Path) -> None:
    with talking(tmp_path, knows_the_rule, prompting=Prompting(examples=3, negatives=4)) as (talk, _):
        shown = SIGNALS[0].shown
        asked = explain_request(talk, shown[:40][::-1], shown[40:]).user
        fires, others = asked.split("It does not fire")
        assert [line for line in fires.splitlines() if line[:1].isdigit()] == [
            f"{i + 1}. {shown_text(Marked(text_of(i), 7, 0))}" for i in range(3)
        ]
        told = [line[3:] for line in others.splitlines() if line[:1].isdigit()]
        kinds = {shown_text(Marked(one.tokens, one.dest, one.src)): one.pick for one in shown[40:]}
        assert len(told) == 4 and all(kinds[line] in HARD for line in told)
        assert len({kinds[line] for line in told}) == 2  # each kind in turn
        assert "\nPATTERN: " in asked and "PATTERN: no valid interpretation" in asked
        assert "It does not fire" not in explain_request(talk, shown[:40], ()).user
        assert llm_explainer(talk)((), ()).text is None  # nothing to ask about


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("PATTERN: src is a name", "src is a name"),
        ("Pattern: one\nso no.\n**PATTERN:** the  last \n", "the last"),
        ("**Pattern: bold**", "bold"),
        ('PATTERN: "quoted"', "quoted"),
        ("PATTERN: No valid interpretation.", None),
        ("PATTERN: src is a name\nPATTERN: no valid interpretation", None),
        ("src is a name", None),
        ("The PATTERN: is hidden", None),
        ("PATTERN:", None),
        ("PATTERN: ...", None),
        ("PATTERN: " + "long " * 200, None),
    ],
)
def test_a_name_is_the_last_labelled_line(text: str, name: str | None) -> None:
    assert read_name(Reply("answered", text)) == name
    for status in ("unfinished", "refused", "malformed"):
        assert read_name(Reply(status, text)) is None


@pytest.mark.parametrize(
    ("text", "yes"),
    [("Yes", True), (" no.", False), ("**YES**", True), ("No, it is", False)]
    + [(text, None) for text in ("Yes and no", "Maybe", "", "Yesterday", "nothing", "The answer: yes", "1")],
)
def test_yes_and_no_are_words(text: str, yes: bool | None) -> None:
    assert read_answer(Reply("answered", text), DETECT) == Answer(yes)


@pytest.mark.parametrize(
    ("text", "choice"), [("3", 2), ("Text 1.", 0), ("**5**", 4), ("6", None), ("0", None), ("1 or 2", None)]
)
def test_an_intruder_is_a_number_of_five(text: str, choice: int | None) -> None:
    five = Question("intruder", DETECT.texts * 5)
    assert read_answer(Reply("answered", text), five) == Answer(choice=choice)
    assert read_answer(Reply("unfinished", text), five) == Answer()


def test_questions_show_the_name_and_one_text_or_five(tmp_path: Path) -> None:
    with talking(tmp_path, knows_the_rule) as (talk, _):
        asked = judge_request(talk, "src is\n a name", DETECT)
        assert "Rule: src is a name\nText: {{Mary}} gave it [[to]]\n" in asked.user and asked.logprobs
        other = judge_request(talk, "src is a name", replace(DETECT, kind="fuzzing"))
        assert other.system != asked.system and other.digest != asked.digest
        five = judge_request(talk, "the name", Question("intruder", DETECT.texts * 5))
        assert "the name" not in five.user and five.user.count("[[to]]") == 5
        with pytest.raises(KeyholeError, match="not 'examples'"):
            judge_request(talk, "", replace(DETECT, kind="examples"))


def test_probabilities_come_from_the_first_token_that_is_an_answer() -> None:
    rows = [{"\n": -0.1}, {" Yes": math.log(0.3), "yes": math.log(0.3), "No": math.log(0.2), "Hm": math.log(0.2)}]
    assert chance(rows, "yes", "no") == pytest.approx(0.75)
    assert chance(rows[::-1], "yes", "no") == pytest.approx(0.75)
    assert chance([{"Hm": -0.1}], "yes", "no") is None and chance([], "yes", "no") is None
    assert chance([{"No": -0.1}], "yes", "no") == 0


@pytest.mark.parametrize(
    "top",
    [
        *(None, [], ["Yes"], {"Yes": -1.0}),
        *([{"token": 1, "logprob": -1}], [{"token": "Yes"}], [{"token": "Yes", "logprob": 2.0}]),
        *([{"token": "Yes", "logprob": float("nan")}], [{"token": "Yes", "logprob": True}]),
    ],
)
def test_log_probabilities_that_are_none_give_none(top: Any) -> None:
    choice = {"message": {"content": "Yes"}, "finish_reason": "stop", "logprobs": {"content": [{"top_logprobs": top}]}}
    reply = read_reply({"choices": [choice]})
    assert reply == Reply("answered", "Yes") and read_answer(reply, DETECT) == Answer(True, None)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (completion("Yes"), "answered"),
        (completion("Yes", finish="length"), "unfinished"),
        (completion("<think>Hm.</think> Yes"), "answered"),
        (completion("<think>Yes, or", finish="length"), "unfinished"),
        (completion(None, refusal="I will not."), "refused"),
        (completion("", finish="content_filter"), "refused"),
        (completion("I'm sorry, but I can't help with that."), "refused"),
        (completion("I cannot answer this."), "refused"),
        (completion(""), "malformed"),
        (completion(None), "malformed"),
        *[(document(v), "malformed") for v in ({"choices": []}, {}, [], None, "Yes", {"choices": {}})],
        *[
            (document({"choices": [v]}), "malformed")
            for v in (None, {}, {"message": None}, {"message": {"content": 1}})
        ],
    ],
)
def test_what_is_no_answer_is_told_as_what_it_is(said: Said, status: str, tmp_path: Path) -> None:
    """Over the wire: recorded as such, not asked again, and never a yes unless it is one."""
    with talking(tmp_path, in_turn(said)) as (talk, server):
        judge = llm_judges(talk)["detection"]
        answer = judge("src is a name", DETECT)
        yes = True if said.content and b"Yes" in said.content and status in ("answered", "unfinished") else None
        yes = None if said.content and b"Yes, or" in said.content else yes
        assert answer == judge("src is a name", DETECT) == Answer(yes)
        assert len(server.bodies) == 1 and dict(talk.transcript.tally()) == {status: 1}
        assert lines(tmp_path)[0]["status"] == status


def test_a_request_is_what_endpoints_read_and_its_digest_is_its_own(tmp_path: Path) -> None:
    with talking(tmp_path, knows_the_rule, seed=7) as (talk, server):
        llm_explainer(talk)(SIGNALS[0].shown[:40], SIGNALS[0].shown[40:])
        llm_judges(talk)["detection"](RULE, DETECT)
        first, second = server.bodies
        assert set(server.paths) == {"/v1/chat/completions"}
        assert (first["temperature"], first["seed"], first["max_tokens"], first["model"]) == (0, 7, 400, "tiny")
        assert "logprobs" not in first and (second["logprobs"], second["top_logprobs"], second["max_tokens"]) == (
            True,
            20,
            5,
        )
        assert [one["role"] for one in second["messages"]] == ["system", "user"]
        assert [line["request"] for line in lines(tmp_path)] == server.bodies
    others = [
        replace(ask(), **{k: v})
        for k, v in (("model", "b"), ("system", "c"), ("user", "d"), ("max_tokens", 6), ("seed", 1))
    ]
    assert len({one.digest for one in (ask(), *others)}) == 6


# A server that misbehaves


@pytest.mark.parametrize(
    "bad",
    [
        Said(content=None),
        Said(content=b"{}", delay=0.8),
        Said(content=b"x" * 30, drip=0.1),
        Said(content=b'{"choices": [', missing=0),
        Said(content=completion("Yes").content, missing=9),
        Said(content=b"<html>busy</html>"),
        Said(content=b"\xff\xfe"),
        failure(500, "oops"),
        failure(503, "loading"),
        failure(429, "slow down"),
        Said(502, b"<html>bad gateway</html>"),
    ],
)
def test_what_may_pass_is_tried_again(bad: Said, tmp_path: Path) -> None:
    late = bad.delay or bad.drip
    patience = replace(QUICK, timeout=0.4, tries=9) if late else QUICK
    with talking(tmp_path, in_turn(bad, completion("Yes")), patience) as (talk, server):
        assert send(talk, ask()) == Reply("answered", "Yes")
        assert len(server.bodies) == lines(tmp_path)[0]["tries"] >= 2 and server.bodies[0] == server.bodies[1]
        assert late or len(server.bodies) == 2  # a busy machine may be late once more


def test_waits_grow_and_end(tmp_path: Path) -> None:
    with talking(tmp_path, in_turn(failure(500, "oops")), replace(QUICK, wait=0.08, tries=4)) as (talk, server):
        with pytest.raises(KeyholeError, match=r"gave no answer in 4 tries: status 500. It says: oops"):
            send(talk, ask())
        gaps = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
        assert len(gaps) == 3 and all(gap >= 0.08 * 0.75 * 2**i for i, gap in enumerate(gaps))
        assert len(talk.transcript) == 0  # nothing was answered, so nothing is kept: a rerun asks again


def test_an_answer_that_stays_garbled_is_kept_as_that(tmp_path: Path) -> None:
    with talking(tmp_path, in_turn(Said(content=b"<p>Yes</p>"))) as (talk, server):
        assert llm_judges(talk)["detection"]("a", DETECT) == Answer()
        assert len(server.bodies) == 3 and lines(tmp_path)[0]["answer"] == "<p>Yes</p>"
        send_all(talk, [judge_request(talk, "a", DETECT)])
        assert len(server.bodies) == 3
    with talking(tmp_path, in_turn(completion("No")), again=True) as (talk, server):
        assert llm_judges(talk)["detection"]("a", DETECT) == Answer(False)  # asked for, on purpose
    with talking(tmp_path, in_turn(completion("Yes")), again=True) as (talk, server):
        assert llm_judges(talk)["detection"]("a", DETECT) == Answer(False) and not server.bodies


def test_again_asks_once_even_if_it_stays_malformed(tmp_path: Path) -> None:
    def run(explainer: Any, judges: Any) -> Answer:
        return judges["detection"]("a", DETECT)

    with talking(tmp_path, in_turn(document({"choices": []})), again=True) as (talk, server):
        assert with_model(talk, run) == with_model(talk, run) == Answer()
        assert len(server.bodies) == 1


@pytest.mark.parametrize("date", [False, True])
def test_retry_after_is_obeyed_by_all(date: bool, tmp_path: Path) -> None:
    """Nobody begins while the server is busy: neither who was told, nor the others."""
    after = ("Retry-After", formatdate(time.time() + 2, usegmt=True) if date else "0.4")

    def behaviour(number: int, body: Body) -> Said:
        return failure(429, "slow down", None, after) if number == 1 else completion("Yes")

    with talking(tmp_path, behaviour, replace(QUICK, longest=3, workers=1)) as (talk, server):
        send_all(talk, [ask(i) for i in range(2)])
        assert len(server.bodies) == 3 and server.times[2] - server.times[1] >= (0.9 if date else 0.4)
        talk.gate.close(0.3)
        began = time.monotonic()
        send_all(talk, [ask(9)])
        assert time.monotonic() - began >= 0.3


def test_a_server_that_asks_for_hours_is_left_alone(tmp_path: Path) -> None:
    with talking(tmp_path, in_turn(failure(429, "", None, ("Retry-After", "7200")))) as (talk, server):
        with pytest.raises(KeyholeError, match="asks to wait for 2 h 0 min"):
            send(talk, ask())
        assert len(server.bodies) == 1


def test_no_more_than_so_many_a_minute_and_at_once(tmp_path: Path) -> None:
    def slow(number: int, body: Body) -> Said:
        return replace(completion("Yes"), delay=0.1)

    with talking(tmp_path, slow, replace(QUICK, per_minute=60 / 0.15)) as (talk, server):
        send_all(talk, [ask(i) for i in range(4)])
        gaps = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
        assert len(gaps) == 3 and sum(gaps) >= 3 * 0.15 - 0.05
    with talking(tmp_path, slow) as (talk, server):
        send_all(talk, [ask(i) for i in range(4, 14)])
        assert len(server.bodies) == 10 and 2 <= server.busiest <= 3


@pytest.mark.parametrize("status", [400, 422, 500])
def test_log_probabilities_are_left_out_where_they_are_not_taken(status: int, tmp_path: Path) -> None:
    def behaviour(number: int, body: Body) -> Said:
        return failure(status, "unknown field: top_logprobs") if "logprobs" in body else completion("Yes")

    with talking(tmp_path, behaviour) as (talk, server):
        assert llm_judges(talk)["detection"]("a", DETECT) == Answer(True, None)
        llm_judges(talk)["detection"]("b", DETECT)
        assert ["logprobs" in body for body in server.bodies] == [True, False, False]
        assert "logprobs" not in lines(tmp_path)[0]["request"]


def test_a_content_filter_is_a_refusal(tmp_path: Path) -> None:
    with talking(tmp_path, in_turn(failure(400, "filtered", "content_filter"))) as (talk, server):
        assert llm_judges(talk)["fuzzing"]("a", replace(DETECT, kind="fuzzing")) == Answer()
        assert dict(talk.transcript.tally()) == {"refused": 1} and len(server.bodies) == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (failure(401, "who are you?"), "needs a key: set KEYHOLE_API_KEY in the environment. It says: who are you?"),
        (failure(404, "The model `tiny` does not exist"), "knows no model 'tiny', or is no base URL"),
        (Said(404, b"<html>not here</html>"), "should end before /chat/completions.$"),
        (failure(400, "context too long\nby far"), r"\(status 400\).* It says: context too long by far"),
        (Said(302, b"", (("Location", "http://127.0.0.1:9/v1"),)), "redirects"),
        (failure(429, "pay first", "insufficient_quota"), "no more credit"),
        (document({"detail": "x" * 500}, 405), r"x\.\.\.$"),
    ],
)
def test_what_the_user_must_mend_is_told_at_once_on_one_line(said: Said, told: str, tmp_path: Path) -> None:
    with talking(tmp_path, in_turn(said)) as (talk, server):
        with pytest.raises(KeyholeError, match=told) as caught:
            send_all(talk, [ask(i) for i in range(9)])
        assert "\n" not in str(caught.value) and len(server.bodies) == 1
        assert not lines(tmp_path)


def test_the_key_goes_to_the_server_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-very-secret"
    monkeypatch.setenv(KEYS[1], secret)
    with talking(tmp_path, in_turn(completion("Yes"), failure(403, f"bad key {secret}"))) as (talk, server):
        send(talk, ask())
        with pytest.raises(KeyholeError, match=r"refuses the key.*bad key \*\*\*$"):
            send(talk, ask(1))
        assert [one["Authorization"] for one in server.headers] == [f"Bearer {secret}"] * 2
        assert secret not in repr(talk)
        monkeypatch.setenv(KEYS[0], "first")
        with suppress(KeyholeError):
            send(talk, ask(2))
        assert server.headers[2]["Authorization"] == "Bearer first"
        monkeypatch.setenv(KEYS[0], "two\nlines")
        with pytest.raises(KeyholeError, match="copy it again"):
            send(talk, ask(3))
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://a/v1", "http://", "http://a b/v1", "http://a:x/v1", "http://é/v1"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(KeyholeError, match="should look like"):
        Endpoint(url, "tiny")


def test_settings_that_are_none() -> None:
    for url in ("http://me:key@a/v1", "http://a/v1?key=1"):
        with pytest.raises(KeyholeError, match="holds no key"):
            Endpoint(url, "tiny")
    with pytest.raises(KeyholeError, match="no model"):
        Endpoint("http://a/v1", "")
    bad: list[dict[str, Any]] = [{"timeout": 0}, {"tries": 0}, {"per_minute": 0}, {"workers": 0}, {"wait": -1}]
    for one in bad:
        with pytest.raises(KeyholeError):
            Patience(**one)
    with pytest.raises(KeyholeError):
        Prompting(examples=0)
    with pytest.raises(KeyholeError):
        Price(-1, 0)


def test_nobody_there(tmp_path: Path) -> None:
    with serving(knows_the_rule) as server:
        gone = server.url
    with open_transcript(tmp_path / "said.jsonl") as transcript:
        with pytest.raises(
            KeyholeError, match=r"gave no answer in 3 tries: no connection \(Connection refused\)"
        ) as caught:
            send_all(Talk(Endpoint(gone, "tiny", QUICK), transcript), [ask(i) for i in range(9)])
        assert "0 of 9" in str(caught.value) and "\n" not in str(caught.value)


def test_a_host_that_nobody_knows_is_told_at_once(tmp_path: Path) -> None:
    unknown = pytest.raises(KeyholeError, match=r"^http://no-such-host\.invalid/v1 is at no known host")
    with open_transcript(tmp_path / "said.jsonl") as transcript, unknown:
        send(Talk(Endpoint("http://no-such-host.invalid/v1", "tiny", QUICK), transcript), ask())


def test_without_httpx_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    client.cache_clear()
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(KeyholeError, match=r"pip install 'keyhole\[naming\]'"):
        require_namers(Namers(judge="llm", url="http://a/v1", model="tiny"))


# Nothing that was paid for is lost


def test_a_server_that_dies_halfway_and_comes_back(tmp_path: Path) -> None:
    """What was answered is on the disk; the rerun asks for what is missing, and comes to what one run would have."""
    dead = 20
    paid: list[str] = []

    def dies(number: int, body: Body) -> Said:
        if number >= dead:
            return Said(content=None)
        paid.append(body["messages"][1]["content"])
        return knows_the_rule(number, body)

    with talking(tmp_path, dies) as (talk, _), pytest.raises(KeyholeError, match="are kept in") as caught:
        with_model(talk, naming)
    assert len(lines(tmp_path)) == dead and "\n" not in str(caught.value)
    with talking(tmp_path, knows_the_rule) as (talk, server):
        left = estimate(talk, naming)
        found = with_model(talk, naming)
        asked = [body["messages"][1]["content"] for body in server.bodies]
        assert not set(asked) & set(paid) and len(set(asked)) == len(asked) == left.requests
        assert left.known == dead and len(talk.transcript) == dead + len(asked)
    with talking(tmp_path, in_turn(failure(500, "not again"))) as (talk, server):
        assert with_model(talk, naming) == found and not server.bodies
    (tmp_path / "said.jsonl").unlink()
    with talking(tmp_path, knows_the_rule) as (talk, _):
        assert with_model(talk, naming) == found


def test_a_model_that_knows_the_rule_passes_and_one_that_refuses_never_does(tmp_path: Path) -> None:
    with talking(tmp_path, knows_the_rule) as (talk, _):
        found = with_model(talk, naming)
        assert {str(one.name) for one in found.signals} == {RULE} and found.explainer == "tiny"
        for kind in ("detection", "fuzzing", "intruder"):
            assert all(one.outcome(kind) == "above chance" for one in found.signals)
        test = found.signals[0].test()
        assert test is not None and (test.accuracy, test.auc, test.unanswered) == (1, 1, 0)
        assert found == name_signals(SIGNALS, llm_explainer(talk), llm_judges(talk), model="tiny")  # one at a time

    def refuses(number: int, body: Body) -> Said:
        said = knows_the_rule(number, body)
        return said if said.content and b"PATTERN" in said.content else completion(None, refusal="No.")

    (tmp_path / "said.jsonl").unlink()
    with talking(tmp_path, refuses) as (talk, _):
        found = with_model(talk, naming)
        test = found.signals[0].test()
        assert test is not None and (test.unanswered, test.right, test.p) == (test.questions, 0, 1)
        assert {one.outcome(kind) for one in found.signals for kind in ("detection", "intruder")} == {"fails"}


def test_names_are_asked_for_first_and_then_all_questions_several_at_once(tmp_path: Path) -> None:
    with talking(tmp_path, lambda n, b: replace(knows_the_rule(n, b), delay=0.02)) as (talk, server):
        with_model(talk, naming)
        names = ["The signal fires" in body["messages"][1]["content"] for body in server.bodies]
        assert names == [True] * 2 + [False] * (len(names) - 2) and server.busiest > 1


def test_the_estimate_is_exact_where_names_differ(tmp_path: Path) -> None:
    """The server names each signal by the texts it sees, so that nothing is asked twice: as the estimate supposes."""

    def behaviour(number: int, body: Body) -> Said:
        asked = body["messages"][1]["content"]
        return completion(f"PATTERN: rule {sha256(asked.encode()).hexdigest()}" if "fires" in asked else "No")

    with talking(tmp_path, behaviour) as (talk, server):
        cost = estimate(talk, naming)
        with_model(talk, naming)
        assert cost.requests == len(server.bodies) > 100


def test_the_model_explains_and_rules_judge(tmp_path: Path) -> None:
    with talking(tmp_path, knows_the_rule) as (talk, server):
        found = with_model(talk, lambda explainer, judges: name_signals(SIGNALS, explainer, RULES))
        assert len(server.bodies) == 2 and all(one.outcome() == "above chance" for one in found.signals)


def test_no_valid_interpretation_is_an_outcome_and_asks_nothing(tmp_path: Path) -> None:
    def none(number: int, body: Body) -> Said:
        assert "Rule: None" not in body["messages"][1]["content"]
        explain = "The signal fires" in body["messages"][1]["content"]
        return completion("PATTERN: no valid interpretation") if explain else completion("No")

    with talking(tmp_path, none) as (talk, _):
        found = with_model(talk, lambda explainer, judges: name_signals(SIGNALS, explainer, judges, controls=False))
        assert found.share().nameless == 2 and found.share().passed == 0
        assert [test.kind for one in found.signals for test in one.tests] == ["intruder"] * 2


def test_the_estimate_is_what_is_asked(tmp_path: Path) -> None:
    with talking(tmp_path, knows_the_rule) as (talk, server):
        cost = estimate(talk, naming, Price(2.0, 10.0))
        assert not server.bodies and cost.known == 0
        with_model(talk, naming)
        told = [message["content"] for body in server.bodies for message in body["messages"]]
        counted = sum(map(about_tokens, told)) + 10 * len(server.bodies)
        # In truth both signals get one name: none is shuffled, and questions about the same text are asked once.
        assert len(server.bodies) < cost.requests <= 1.5 * len(server.bodies)
        assert counted < cost.tokens_in < 2 * counted
        assert cost.tokens_out == 2 * 400 + (cost.requests - 2) * 5
        assert cost.price == pytest.approx((2 * cost.tokens_in + 10 * cost.tokens_out) / 1e6)
        again = estimate(talk, naming)
        assert (again.requests, again.tokens_in, again.known) == (0, 0, len(server.bodies)) and again.price is None
        assert str(again).startswith("0 requests") and f"({len(server.bodies)} more are answered)" in str(again)


def test_a_stop_sends_nothing_new_and_keeps_what_is_on_the_way(tmp_path: Path) -> None:
    talks: list[Talk] = []

    def slow(number: int, body: Body) -> Said:
        if number == 4:
            talks[0].gate.stop.set()
        return replace(completion("Yes"), delay=0.05)

    with talking(tmp_path, slow) as (talk, server):
        talks.append(talk)
        with pytest.raises(KeyholeError, match=r"stopped: \d+ of 50 requests were answered"):
            send_all(talk, [ask(i) for i in range(50)])
        sent = len(server.bodies)
        assert 5 <= sent <= 8 and len(talk.transcript) == sent == len(lines(tmp_path))
        assert send(talk, ask(99)).text == "Yes"  # the talk goes on when asked to


def test_control_c_keeps_what_is_on_the_way(tmp_path: Path) -> None:
    def interrupted(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with talking(tmp_path, lambda n, b: replace(completion("Yes"), delay=0.05)) as (talk, server):
        with pytest.raises(KeyboardInterrupt):
            send_all(talk, [ask(i) for i in range(50)], progress=interrupted)
        time.sleep(0.2)
        assert 3 <= len(server.bodies) <= 6 and len(talk.transcript) == len(server.bodies)


def test_one_request_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def behaviour(number: int, body: Body) -> Said:
        return failure(500, "oops") if "Question 3?" in body["messages"][1]["content"] else completion("Yes")

    with talking(tmp_path, behaviour) as (talk, _), pytest.raises(KeyholeError, match="8 of 9 requests were answered"):
        send_all(talk, [ask(i) for i in range(9)])


def test_a_server_that_is_gone_is_not_asked_for_all(tmp_path: Path) -> None:
    def behaviour(number: int, body: Body) -> Said:
        return completion("Yes") if number < 2 else failure(500, "oops")

    with talking(tmp_path, behaviour) as (talk, server):
        with pytest.raises(KeyholeError, match="2 of 100 requests"):
            send_all(talk, [ask(i) for i in range(100)])
        assert len(server.bodies) <= 2 + (3 + 2 * 3) * 3


# The transcript


def test_a_torn_line_is_no_answer(tmp_path: Path) -> None:
    with talking(tmp_path, in_turn(completion("Yes"))) as (talk, _):
        send_all(talk, [ask(i) for i in range(3)])
    path = tmp_path / "said.jsonl"
    whole = path.read_bytes()
    for cut in (1, 20, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        with talking(tmp_path, in_turn(completion("Yes"))) as (talk, server):
            assert len(talk.transcript) == 2
            send_all(talk, [ask(i) for i in range(3)])
            assert len(server.bodies) == 1
        assert len(lines(tmp_path)) == 3


@pytest.mark.parametrize("line", ["{}", "[]", "not JSON", '{"digest": "a"}', "\udcff"])
def test_a_file_that_is_no_transcript_is_left_as_it_is(line: str, tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    for end in ("\n", ""):
        path.write_bytes((line + end).encode(errors="surrogateescape"))
        before = path.read_bytes()
        if not end and b'{"digest": "'.startswith(before[:12]):
            continue  # the beginning of a line that was torn
        with pytest.raises(KeyholeError, match=r"line 1 of|no transcript"), open_transcript(path):
            pass
        assert path.read_bytes() == before


def test_an_answer_is_flushed_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def fsync(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    with talking(tmp_path, in_turn(completion("Yes"))) as (talk, _):
        for i in range(3):
            send(talk, ask(i))
            assert len(synced) == i + 1 and synced[-1] == (tmp_path / "said.jsonl").stat().st_size

        def full(handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(KeyholeError, match="No space left"):
            send(talk, ask(3))
        assert talk.transcript.get(ask(3)) is None


def test_one_writer_at_a_time_and_only_where_one_can_write(tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    with open_transcript(path), pytest.raises(KeyholeError, match="another process writes"), open_transcript(path):
        pass
    with open_transcript(path) as transcript:
        assert len(transcript) == 0
    for bad, told in (
        (tmp_path, "is a folder"),
        (tmp_path / "a.txt", "should end in"),
        (tmp_path / "b" / "c.jsonl", "no folder"),
    ):
        with pytest.raises(KeyholeError, match=told), open_transcript(bad):
            pass
