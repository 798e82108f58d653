"""The explorer's server: who is refused, what jobs do, and that every answer is the library's own."""

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

import keyhole
from conftest import tiny_model
from keyhole.cli.app import app as command_line
from keyhole.edits.files import plain as plain_edit
from keyhole.edits.files import typed_edit
from keyhole.files import finite
from keyhole.generation import beside
from keyhole.intervene import Cut, Metric
from keyhole.intervene import intervene as intervene_by_hand
from keyhole.models import load
from keyhole.models.attention import edits_of
from keyhole.naming.attached import edge_names
from keyhole.naming.explain.sentences import Name
from keyhole.naming.judge import judge
from keyhole.naming.record import Named, Naming, save_naming
from keyhole.naming.subjects.kinds import signal_subjects
from keyhole.naming.subjects.subject import distinct
from keyhole.qk.firings import find_firings, head_map
from keyhole.requests.bodies import Body, PromptBody
from keyhole.requests.jobs import Jobs, Limits, Reporter
from keyhole.requests.kept import Given
from keyhole.store import Outcome
from keyhole.studies.families.families import families
from keyhole.tasks import ioi
from keyhole.tracing import why
from keyhole.tracing.linear import firing_probe
from keyhole.web.notebook import Live
from keyhole.web.page import story_lines
from keyhole.web.server import kinds
from keyhole.web.server.security import BODY, Door
from serving import FIRING, PROMPT, Served, events, serving, until
from stores import stored

pytestmark = pytest.mark.xdist_group("server")
GRACE = 0.4
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, outcomes: list[Any]) -> Path:
    return stored(tmp_path_factory.mktemp("stores") / "ioi.store", outcomes).path


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Served]:
    with serving(Given(stores=(store,)), Limits(grace=GRACE)) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx.Client]:
    with served.client() as made:
        yield made


OTHER_NAMES = "When Albert and Gloria went to the store, Gloria gave a drink to"


def ask(client: httpx.Client, kind: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/{kind}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: httpx.Client, kind: str, **body: Any) -> str:
    answer = client.post(f"/api/{kind}", json=body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"])


def plain(value: Any) -> Any:
    return json.loads(json.dumps(finite(value)))


# -- who may ask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "",
        "[::2]:{port}",
    ],
)
def test_a_foreign_host_is_refused(served: Served, client: httpx.Client, host: str) -> None:
    answer = client.get("/api/hello", headers={"Host": host.format(port=served.door.port)})
    assert answer.status_code in (400, 421)
    assert answer.status_code == 400 or "does not answer to that name" in answer.json()["error"]  # 400: uvicorn's own


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"])
def test_own_names_are_answered(served: Served, client: httpx.Client, host: str) -> None:
    own = f"{host}:{served.door.port}"
    assert client.get("/api/hello", headers={"Host": own, "Origin": f"http://{own}"}).status_code == 200


def test_hosts_of_other_addresses() -> None:
    named, every = Door("box.lan", 80), Door("0.0.0.0", 7373)
    assert Door("Box.lan", 80).knows_host("box.lan") and not named.knows_host("box.lan:" + 5000 * "8")
    assert named.knows_host("box.lan") and named.knows_host("box.lan:80") and not named.knows_host("other.lan")
    assert every.knows_host("192.168.1.5:7373") and not every.knows_host("rebound.example:7373")
    assert not Door("127.0.0.1", 7373).knows_host("192.168.1.5:7373")


@pytest.mark.parametrize("host", ["0", "0.0.0.0", "::", "", "localhost", "127.1", "2130706433"])
def test_the_printed_address_is_answered(host: str) -> None:
    with serving(host=host) as own:
        spelled = str(httpx.URL(own.door.address).copy_with(query=None))
        assert spelled.split("//")[1].split(":")[0] in ("127.0.0.1", "localhost", "["), "as a browser spells it"
        answer = httpx.get(own.door.address, follow_redirects=True, timeout=20)
        assert answer.status_code == 200 and "<title>Keyhole</title>" in answer.text


def half_open(served: Served, sent: bytes) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", served.door.port), timeout=20)
    found.sendall(sent)
    return found


def closed(connection: socket.socket) -> bool:
    """Has the server ended it? What it answered before is read over."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_half_open_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.web.server.listen.HEADERS_S", 0.5)
    with serving() as own, own.client() as client, contextlib.ExitStack() as opened:
        heads = [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"]
        for i in range(260):
            opened.enter_context(half_open(own, heads[i % 3]))
        assert httpx.get(own.door.address, timeout=20).status_code == 503  # the door is full
        until(lambda: len(own.server.server_state.connections) < 5)
        assert client.get("/api/hello").status_code == 200


@pytest.mark.parametrize(
    "first", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_trickle_of_bytes_gains_no_time(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.web.server.listen.HEADERS_S", 0.5)
    with serving() as own, half_open(own, first) as slow:
        slow.settimeout(0.1)
        for _ in range(30):  # a byte every tenth of a second, for six times as long as is allowed
            if closed(slow):
                break
            with contextlib.suppress(OSError):  # it may be closed just now
                slow.sendall(b"" if b"POST" in first else b"G")
        else:
            pytest.fail("the connection is still open")


def test_an_answer_that_takes_long_is_not_cut(counted: "Counted", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.web.server.listen.HEADERS_S", 0.2)
    with serving() as own, own.client() as client:
        assert ask(client, "count", n=60) == {"counted": 60}
        assert list(events(client, begin(client, kind="count", n=60)))[-1] == ("result", {"counted": 60})


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://localhost:{port}", None]
)
def test_a_foreign_origin_is_refused(served: Served, client: httpx.Client, origin: str | None) -> None:
    own = {} if origin is None else {"Origin": origin.format(port=served.door.port)}
    with httpx.Client(base_url=served.base, cookies=client.cookies) as other:
        assert other.post("/api/run", json={"prompt": PROMPT}, headers=own).status_code == 403
        assert other.delete("/api/jobs/x", headers=own).status_code == 403
        expected = 403 if own else 400  # without one, events and answers are asked for by the page itself
        assert other.get("/api/jobs/x/events", headers={**own, "Accept": "text/event-stream"}).status_code == expected
        for site in ("cross-site", "same-site", "anything"):  # another port of this machine is the same site
            across = other.get("/api/hello", headers={"Sec-Fetch-Site": site})
            assert across.status_code == 403 and "access-control-allow-origin" not in across.headers
        assert other.get("/api/hello", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_cookies_of_two_servers_have_two_names(served: Served) -> None:
    """Browsers send the cookies of a host to all of its ports: under one name two servers would sign each other out."""
    given = httpx.get(served.door.address).headers["set-cookie"]
    assert given.startswith(f"keyhole-{served.door.port}=")
    with serving() as other:
        assert other.door.cookie_name != served.door.cookie_name


def test_without_the_token_nothing_is_told(served: Served) -> None:
    with httpx.Client(base_url=served.base, headers={"Origin": served.base}) as stranger:
        for path in (
            "/",
            "/index.html",
            "/api/hello",
            "/api/jobs/x/events",
            "/?token=",
            "/?token=wrong",
            "/api/hello?token=",
        ):
            answer = stranger.get(path)
            assert answer.status_code == 401 and "keyhole explore" in answer.text, path
            assert path.startswith("/api/") == (answer.headers["content-type"] == "application/json")
        assert stranger.get(f"/api/hello?token={served.door.token}").status_code == 401  # exchanged at / alone
        assert stranger.post("/api/run", json={"prompt": PROMPT}).status_code == 401
        stranger.cookies.set(served.door.cookie_name, served.door.token)
        assert stranger.get("/api/hello").status_code == 401  # the token is not the cookie


def test_the_token_becomes_a_cookie_and_leaves_the_address(served: Served) -> None:
    with httpx.Client(base_url=served.base) as browser:
        answer = browser.get(f"/?prompt=a%26b&token={served.door.token}")
        assert answer.status_code == 303 and answer.headers["location"] == "/?prompt=a%26b"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and served.door.token not in cookie
        assert browser.get("/").status_code == 200
        assert browser.get("/?token=stale").status_code == 303  # an old address in a browser that is in already
    linked = httpx.get(served.door.address, headers={"Sec-Fetch-Site": "cross-site"})
    assert linked.status_code == 200 and 'http-equiv="refresh"' in linked.text and served.door.token not in linked.text


def test_every_answer_carries_the_policy(served: Served, client: httpx.Client) -> None:
    for answer in (client.get("/"), client.get("/api/hello"), httpx.get(served.base), client.get("/nothing")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ") and "unsafe" not in policy
        assert {part.split(" ", 1)[1] for part in policy.split("; ")} == {"'none'", "'self'"}  # no scheme, nobody else
        assert "frame-ancestors 'none'" in policy and "form-action 'none'" in policy and "base-uri 'none'" in policy
        told = {name: answer.headers[name] for name in ("x-content-type-options", "referrer-policy", "cache-control")}
        assert told == {
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
        }
        assert "access-control-allow-origin" not in answer.headers


def test_bodies_are_bounded_and_json(client: httpx.Client) -> None:
    large = json.dumps({"prompt": "a" * BODY}).encode()
    assert client.post("/api/run", content=large, headers=JSON).status_code == 413
    pieces = client.post("/api/run", content=iter([large[:1000]] * 100), headers=JSON)  # of no length told before
    assert pieces.status_code == 413 and "64 kB" in pieces.json()["error"]
    assert client.request("GET", "/api/stores", content=large).status_code == 413
    assert client.post("/api/run", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    for wrong in (b"[]", b"{", b"\xff", b'{"a": NaN}', b"[" * 5000):
        assert client.post("/api/run", content=wrong, headers=JSON).status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/../server/app.py",
        "/..%2fserver/app.py",
        "/%2e%2e/server/app.py",
        "/%2e%2e%2f%2e%2e%2fversion.py",
        "/lib/../../page.py",
        "//etc/passwd",
        "/..\\server\\app.py",
        "/jsconfig.json",
        "/docs",
        "/openapi.json",
        "/redoc",
    ],
)
def test_no_path_leads_out(served: Served, client: httpx.Client, path: str) -> None:
    cookie = client.cookies[served.door.cookie_name]
    own = f"Host: 127.0.0.1:{served.door.port}\r\nCookie: {served.door.cookie_name}={cookie}\r\nConnection: close"
    with socket.create_connection(("127.0.0.1", served.door.port)) as raw:  # as it is: clients tidy such paths up
        raw.sendall(f"GET {path} HTTP/1.1\r\n{own}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split()[1] == b"404" and b"nothing at this address" in answer


# -- jobs ----------------------------------------------------------------------------------------------------------


class Counted:
    """Work that counts, so that it is known whether it goes on."""

    def __init__(self) -> None:
        self.done, self.begun = 0, 0

    def __call__(self, reporter: Reporter, steps: int) -> dict[str, int]:
        self.begun += 1
        progress = reporter.progress("Counting")
        for step in range(steps):
            progress(step, steps)
            time.sleep(0.01)
            self.done += 1
        return {"counted": steps}


class CountBody(Body):
    n: int


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    work = Counted()

    def count(kept: Any, body: CountBody, reporter: Reporter) -> dict[str, int]:
        return work(reporter, body.n)

    monkeypatch.setattr("keyhole.web.server.prompt.count", count, raising=False)
    monkeypatch.setitem(kinds.KINDS, "count", kinds.Kind("prompt", "count", quick=False))
    return work


def begin(client: httpx.Client, **body: Any) -> str:
    answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def test_a_job_tells_how_far_it_is(client: httpx.Client, counted: Counted) -> None:
    number = begin(client, kind="count", n=20)
    told = list(events(client, number))
    assert [name for name, _ in told][:2] == ["queued", "started"] and told[-1] == ("result", {"counted": 20})
    reports = [one for name, one in told if name == "progress"]
    steps = [one["done"] for one in reports]
    assert steps == sorted(steps) and len(steps) >= 2
    assert all(one["what"] == "Counting" and one["total"] in (0, 20) for one in reports)
    known = client.get(f"/api/jobs/{number}").json()
    assert known["state"] == "done" and known["result"] == {"counted": 20} and known["kind"] == "count"
    assert list(events(client, number)) == [("result", {"counted": 20})]  # heard again


def test_work_reports_before_anything_is_done() -> None:
    reports = list[tuple[str, int, int]]()
    reporter = Reporter(threading.Event(), lambda *report: reports.append(report), lambda: None)
    progress = reporter.progress("Tracing")
    assert reports == [("Tracing", 0, 0)]  # how much it is, nobody knows yet
    keyhole.load().run(PROMPT).trace(progress=progress)
    assert reports[1] == ("Tracing", 0, 4) and reports[-1] == ("Tracing", 4, 4)
    for done in (3, 0, 1):
        progress(done, 3)
    assert reports[-2:] == [("Tracing", 3, 3), ("Tracing", 0, 3)]  # at once: a new part begins


def test_a_job_that_fails_says_why(client: httpx.Client) -> None:
    number = begin(client, kind="run", prompt="Mary zzz")
    (name, told) = list(events(client, number))[-1]
    assert name == "error" and "does not know 'zzz'" in told["error"]
    assert client.get(f"/api/jobs/{number}").json()["error"] == told["error"]
    assert client.post("/api/jobs", json={"kind": "nonsense"}).status_code == 400
    assert client.get("/api/jobs/nonsense").status_code == 400


def test_a_cancelled_job_really_stops(served: Served, client: httpx.Client, counted: Counted) -> None:
    number, waits = begin(client, kind="count", n=10_000), begin(client, kind="count", n=10_000)
    until(lambda: counted.done > 2)
    assert client.delete(f"/api/jobs/{waits}").json() == {"state": "cancelled"}
    assert client.delete(f"/api/jobs/{number}").json() == {"state": "cancelled"}
    until(lambda: not served.jobs.busy, 2)
    done = counted.done
    time.sleep(0.1)
    assert counted.done == done < 10_000 and counted.begun == 1  # nor did the one that waited ever begin
    assert [name for name, _ in events(client, number)][-1] == "cancelled"


def test_a_cancelled_search_stops_in_the_library(served: Served, client: httpx.Client) -> None:
    number = begin(client, kind="where", what="3.1", tokens=2_000_000)
    for name, told in events(client, number):
        if name == "progress":
            assert told["done"] < 200_000
            client.delete(f"/api/jobs/{number}")
        if name in ("result", "error", "cancelled"):
            break
    assert name == "cancelled"
    until(lambda: not served.jobs.busy, 2)


WRITES_ON = "Box A has the apple. Box B has the book. Box A has"  # the organism does not end soon after this


def test_an_answer_comes_token_by_token(client: httpx.Client, organism: keyhole.Model) -> None:
    number = begin(client, kind="generate", prompt=WRITES_ON, max_new_tokens=40)
    heard = list(events(client, number))
    answer = organism.generate(WRITES_ON, max_new_tokens=40)
    name, result = heard[-1]
    assert name == "result" and result["text"] == answer.text and result["stopped"] == "length"
    assert [token["id"] for token in result["tokens"]] == [token.id for token in answer.tokens]
    assert [token["probability"] for token in result["tokens"]] == pytest.approx(
        [token.probability for token in answer.tokens], abs=1e-6
    )
    assert result["prompt_ids"] == list(organism.run(WRITES_ON).token_ids)
    assert "".join(token["piece"] for token in result["tokens"]) == answer.text
    so_far = [report["tokens"] for name, report in heard if name == "progress"]
    assert [len(tokens) for tokens in so_far] == sorted(len(tokens) for tokens in so_far)
    assert all(token["id"] == answer.tokens[i].id for tokens in so_far for i, token in enumerate(tokens))


def test_a_cancelled_answer_keeps_what_was_written(
    client: httpx.Client, organism: keyhole.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, pieces = threading.Event(), Reporter.pieces

    def slowly(reporter: Reporter, part: str, done: int, total: int, **so_far: Any) -> None:
        pieces(reporter, part, done, total, **so_far)
        begun.set()
        time.sleep(0.05)

    monkeypatch.setattr(Reporter, "pieces", slowly)
    number = begin(client, kind="generate", prompt=WRITES_ON, max_new_tokens=100)
    assert begun.wait(20)
    client.delete(f"/api/jobs/{number}")
    name, result = list(events(client, number))[-1]
    assert name == "result" and result["stopped"] == "interrupted" and 0 < len(result["tokens"]) < 50
    whole = organism.generate(WRITES_ON, max_new_tokens=len(result["tokens"]))
    assert [token["text"] for token in result["tokens"]] == [token.text for token in whole.tokens]


def test_nobody_is_let_in_while_the_model_is_edited(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick work between two tokens would see the edited model, and be kept as the model's own."""
    rests = list[int]()
    monkeypatch.setattr(Jobs, "_quick_ones", lambda jobs: rests.append(len(edits_of)))
    edits = ask(client, "edit", typed="1.6*-3")["edits"]
    assert ask(client, "beside", prompt=WRITES_ON, edits=edits, max_new_tokens=5)["edited"]["tokens"]
    assert rests and not any(rests)


def test_parts_of_circuits_and_firings_become_edits(client: httpx.Client, organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    circuit = run.trace()
    edge = next(i for i, one in enumerate(circuit.edges) if one.side == "dest")
    node = next(i for i, one in enumerate(circuit.nodes) if one.kind == "head")
    on = circuit.edit(circuit.edges[edge], factor=0.5, scope="on")
    found = ask(client, "edit", prompt=PROMPT, edge=edge, factor=0.5, scope="on")
    assert found == plain({"edits": [plain_edit(on)], "texts": [str(on)]})
    whole = circuit.edit(circuit.nodes[node])
    assert ask(client, "edit", prompt=PROMPT, node=node)["edits"] == plain([plain_edit(whole)])
    signals = run.explain((1, 6), 14, 2).edits(factor=2.0)
    place = {"layer": 1, "head": 6, "dest": 14, "src": 2}
    assert ask(client, "edit", prompt=PROMPT, factor=2, **place)["edits"] == plain([plain_edit(e) for e in signals])
    assert "there is no edge 9999" in refused(client, "edit", prompt=PROMPT, edge=9999)
    assert "of an edge or of a node" in refused(client, "edit", prompt=PROMPT)
    assert "is no edit" in refused(client, "edit", typed="Mary")
    target = next(i for i, one in enumerate(circuit.edges) if one.side == "target")
    assert "is no signal" in refused(client, "edit", prompt=PROMPT, edge=target)


def test_both_answers_are_the_library_s(client: httpx.Client, organism: keyhole.Model) -> None:
    edits = [typed_edit(text) for text in ("3.1*0", "1.6*0")]
    answers = beside(organism, PROMPT, edits, controls=2, max_new_tokens=6)
    found = ask(
        client, "beside", prompt=PROMPT, edits=plain([plain_edit(e) for e in edits]), controls=2, max_new_tokens=6
    )
    record = plain(answers.record())
    for name in ("edits", "controls"):
        assert found[name] == record[name]
    assert found["changed"] == answers.changed and found["texts"] == [str(edit) for edit in edits]
    for name in ("original", "edited"):
        assert found[name]["text"] == record[name]["text"] and found[name]["tokens"] == record[name]["tokens"]
    assert "choose one of channels" in refused(client, "beside", prompt=PROMPT, edits=[{"kind": "x"}])
    assert "2,000 together" in refused(client, "beside", prompt=PROMPT, edits=[], max_new_tokens=1990)
    assert "at least 1" in refused(client, "generate", prompt=PROMPT, max_new_tokens=0)
    assert "has no chat template" in refused(client, "generate", prompt=[{"role": "user", "content": "Mary"}])


def test_a_stop_is_heard_inside_a_layer(
    client: httpx.Client, served: Served, organism: keyhole.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, whole = list[float](), why.search

    def slowly(*given: Any, **more: Any) -> Any:
        searched.append(time.monotonic())
        time.sleep(0.1)
        return whole(*given, **more)

    monkeypatch.setattr(why, "search", slowly)
    monkeypatch.setattr(why, "_COORD_FLOATS", 1)  # every firing by itself
    number, reported = begin(client, kind="trace", prompt=PROMPT, first_token="mark"), list[int]()
    for name, told in events(client, number):
        reported += [told["done"]] if name == "progress" and told["total"] else []
        if len(reported) > len(set(reported)):  # inside a layer
            client.delete(f"/api/jobs/{number}")
            break
    until(lambda: not served.jobs.busy, 5)
    assert client.get(f"/api/jobs/{number}").json()["state"] == "cancelled"
    assert 0 < len(searched) < 2 * len(organism.run(PROMPT).trace(first_token="mark").firings)  # two sides of each


def test_loading_can_be_cancelled(client: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, whole = list[Any](), threading.Event(), load.load

    def slowly(source: Any) -> keyhole.Model:
        begun.append(source)
        assert goes_on.wait(20)
        return whole(None)

    monkeypatch.setattr(load, "load", slowly)
    number = begin(client, kind="load", model="slow.gguf")
    until(lambda: begun == ["slow.gguf"])
    assert json.loads(client.get(f"/api/jobs/{number}").text)["progress"]["what"] == "Loading slow.gguf"
    assert [one["state"] for one in client.get("/api/hello").json()["models"]] == [
        "ready"
    ]  # not known before it is read
    client.delete(f"/api/jobs/{number}")
    until(lambda: not served.jobs.busy, 2)
    assert ask(client, "run", prompt=PROMPT)["model"] == "organism"  # the worker is free
    again = begin(client, kind="run", model="slow.gguf", prompt=PROMPT)
    goes_on.set()
    assert list(events(client, again))[-1][0] == "result" and begun == ["slow.gguf"]  # it waited for the same loading
    served.kept.models.kept.pop("slow.gguf")
    served.kept.known.pop("slow.gguf")


def test_what_nobody_waits_for_is_stopped(served: Served, client: httpx.Client, counted: Counted) -> None:
    never = begin(client, kind="count", n=10_000)  # a tab that was killed before it listened
    until(lambda: not served.jobs.busy, GRACE + 8)
    left = begin(client, kind="count", n=10_000)
    for name, _ in events(client, left):  # and one that was killed while it did
        if name == "progress":
            break
    until(lambda: not served.jobs.busy, GRACE + 8)
    assert [client.get(f"/api/jobs/{one}").json()["state"] for one in (never, left)] == ["cancelled", "cancelled"]
    before = counted.done
    with pytest.raises(httpx.ReadTimeout):
        client.post("/api/count", json={"n": 10_000}, timeout=0.3)
    until(lambda: not served.jobs.busy, 3)
    assert before < counted.done < before + 200
    assert ask(client, "count", n=80) == {"counted": 80}  # longer than the grace: whoever waits is heard


def test_quick_work_goes_before_long_work(client: httpx.Client, counted: Counted, served: Served) -> None:
    ask(client, "run", prompt=PROMPT)
    number = begin(client, kind="count", n=10_000)
    until(lambda: counted.done > 2)
    ask(client, "firing", **FIRING)
    # whatever the machine does beside it: the long work takes 100 seconds at least, and is not over yet
    assert client.get(f"/api/jobs/{number}").json()["state"] == "running"
    client.delete(f"/api/jobs/{number}")
    until(lambda: not served.jobs.busy, 60)


def test_a_job_knows_how_many_go_before_it(counted: Counted) -> None:
    with serving(limits=Limits(grace=60)) as own, own.client() as client:
        numbers = [begin(client, kind="count", n=100_000)]
        until(lambda: counted.done > 0)
        numbers += [begin(client, kind="count", n=1) for _ in range(3)]
        ahead = [own.jobs.ahead(own.jobs.get(number)) for number in numbers]
        assert ahead == [0, 1, 2, 3]  # whoever came later is not before it
        for number in numbers:
            client.delete(f"/api/jobs/{number}")


def test_only_so_much_waits_and_is_kept(counted: Counted) -> None:
    with serving(limits=Limits(waiting=5, kept=3, grace=60)) as own, own.client() as client:
        first = begin(client, kind="count", n=100_000)
        until(lambda: counted.done > 0)
        answers = [client.post("/api/jobs", json={"kind": "count", "n": 1}) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [202] * 5 + [503] * 3
        assert "try again" in answers[-1].json()["error"]
        client.delete(f"/api/jobs/{first}")
        until(lambda: not own.jobs.busy and all(job.ended for job in own.jobs._jobs.values()))
        assert len(own.jobs._jobs) == 3 and counted.begun == 6
        assert client.get(f"/api/jobs/{answers[4].json()['id']}").json()["state"] == "done"
        assert "ended long ago" in client.get(f"/api/jobs/{first}").json()["error"]


def test_results_are_forgotten_by_their_size(counted: Counted) -> None:
    with serving(limits=Limits(kept=50, kept_bytes=45, grace=60)) as own, own.client() as client:
        numbers = [begin(client, kind="count", n=1) for _ in range(6)]
        until(lambda: counted.begun == 6 and not own.jobs.busy, 60)
        until(lambda: all(job.ended for job in own.jobs._jobs.values()), 60)
        sizes = [len(job.last[1]) for job in own.jobs._jobs.values() if job.last]
        assert 1 <= len(sizes) < 6 and sum(sizes) <= 45
        assert client.get(f"/api/jobs/{numbers[-1]}").json()["state"] == "done"  # the latest is kept


@pytest.mark.parametrize(("off", "agrees"), [(0.0, True), (5e-5, True), (1e-3, False), (0.05, False)])
def test_a_page_calls_a_removal_predicted_only_where_it_is(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, off: float, agrees: bool
) -> None:
    from keyhole.web.server import finding

    def missed(*args: Any, **options: Any) -> list[Any]:
        return [replace(one, predicted=one.after + off) for one in real(*args, **options)]

    real = finding.make
    monkeypatch.setattr(finding, "make", missed)
    told = ask(client, "intervene", **FIRING, side="src", draws=0, seed=int(1e6 * off))
    assert told["agrees"] is agrees


def test_a_fault_of_ours_is_told_and_the_worker_goes_on(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kept: Any, body: PromptBody, reporter: Reporter) -> float:
        return 1 / 0

    monkeypatch.setattr("keyhole.web.server.prompt.run", fails)
    answer = client.post("/api/run", json={"prompt": PROMPT})
    assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["error"]
    monkeypatch.undo()
    assert ask(client, "run", prompt=PROMPT)["model"] == "organism"


def test_twenty_clients_at_once() -> None:
    places = [(layer, head) for layer in range(1, 4) for head in range(8)][:20]

    def one(place: tuple[int, int]) -> tuple[Any, ...]:
        with server.client() as own:
            found = ask(own, "firing", prompt=PROMPT, layer=place[0], head=place[1], dest=-1)
            done = list(events(own, begin(own, kind="run", prompt=PROMPT)))[-1]
            return found["layer"], found["head"], done[0]

    # on a busy machine a client may take longer to listen to its work than one that has left would be waited for
    with serving(limits=Limits(grace=120)) as server, ThreadPoolExecutor(20) as pool:
        assert list(pool.map(one, places)) == [(*place, "result") for place in places]


# -- what is answered ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(organism: keyhole.Model) -> keyhole.Run:
    return organism.run(PROMPT)


def test_hello_and_load(client: httpx.Client, organism: keyhole.Model, store: Path) -> None:
    told = ask(client, "load")
    assert told["fingerprint"] == organism.fingerprint() and told["layers"] == 4 and told["heads"] == 8
    hello = client.get("/api/hello").json()  # "ready" below: the model is loaded by now
    assert hello["models"] == [{"id": "organism", "name": "organism", "state": "ready"}]
    assert hello["first"] == "organism" and Given(models=("gpt2", "organism")).first == "gpt2"
    assert hello["stores"] == [{"id": "ioi.store", "path": str(store)}] and hello["version"] == keyhole.__version__
    assert "cannot load nonsense/model" in refused(client, "load", model="nonsense/model")
    assert "nonsense" not in client.get("/api/hello").text  # what cannot be loaded is not known
    assert "too long" in refused(client, "load", model="x" * 1000)


def test_run(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "run", prompt=PROMPT, top=3)
    assert (told["tokens"], told["token_ids"], told["bos"]) == (list(run.tokens), list(run.token_ids), run.bos)
    likely = run.logits[-1].double().softmax(-1)
    for one in told["predictions"]:
        assert one["probability"] == pytest.approx(float(likely[one["id"]]), rel=1e-4)
        assert one["text"] == run.model.tokenizer.decode([one["id"]])
    assert told["predictions"][0]["id"] == int(likely.argmax()) and len(told["predictions"]) == 3
    check = keyhole.check(run.model, PROMPT)
    assert told["exact"] and told["error"] == pytest.approx(max(check.scores, check.residuals, check.logits))
    assert ask(client, "run", prompt=list(run.token_ids), top=3)["predictions"] == told["predictions"]
    assert ask(client, "run", prompt=PROMPT, check=False)["error"] is None


def test_answers(client: httpx.Client, run: keyhole.Run) -> None:
    found = ask(client, "answers", prompt=PROMPT, words=["Mary", run.token_ids[4]])
    likely = run.logits[-1].double().softmax(-1)
    assert [one["id"] for one in found["tokens"]] == [run.token_ids[2], run.token_ids[4]] and found["refused"] is None
    assert [one["text"].strip() for one in found["tokens"]] == ["Mary", "John"]
    for one in found["tokens"]:
        assert one["probability"] == pytest.approx(float(likely[one["id"]]))
    several = ask(client, "answers", prompt=PROMPT, words=["John gave a"])
    assert "is 3 tokens here, 'John' + 'gave' + 'a', and the explorer asks for one token" in several["refused"]
    assert several["tokens"] == [] and several["instead"]["id"] == run.token_ids[4]
    long = ask(client, "answers", prompt=PROMPT, words=["John " * 5000])["refused"]
    assert "5000 tokens" in long and len(long) < 250
    unknown = ask(client, "answers", prompt=PROMPT, words=["xyzzy"])
    assert "does not know 'xyzzy'" in unknown["refused"] and unknown["instead"] is None
    assert "outside the vocabulary" in ask(client, "answers", prompt=PROMPT, words=[10**6])["refused"]
    assert "words" in refused(client, "answers", prompt=PROMPT, words=[1.5])


def test_heads(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "heads", prompt=PROMPT)
    assert [(one["layer"], one["head"]) for one in told["heads"]] == [(x, h) for x in range(4) for h in range(8)]
    sites = [one for one in find_firings(run) if one.src > 0]
    assert len(sites) > 50
    assert [(one["layer"], one["head"], one["dest"], one["src"]) for one in told["firings"]] == [
        (one.layer, one.head, one.dest, one.src) for one in sites[:200]
    ]
    counts = np.arange(1, 16)
    for one in told["heads"]:
        weights = run.pattern(one["layer"])[one["head"]].double().numpy()
        times = (weights * counts[:, None])[:, 1:]
        assert one["times_uniform"] == pytest.approx(times.max(), rel=1e-5)
        assert one["attention"] == pytest.approx(weights[one["dest"], one["src"]], rel=1e-5)
        rows = [
            -(row[row > 0] * np.log(row[row > 0])).sum() / np.log(n)
            for row, n in zip(weights[1:], counts[1:], strict=True)
        ]
        assert one["entropy"] == pytest.approx(np.mean(rows), rel=1e-5)
        assert one["sink"] == pytest.approx(weights[1:, 0].mean(), rel=1e-5)
        split = run.channels((one["layer"], one["head"]), one["dest"], one["src"])
        assert one["sparsity"] == pytest.approx(split.sparsity, rel=1e-4)


def test_few_firings_of_many_are_the_strongest(run: keyhole.Run) -> None:
    sites = [one for one in find_firings(run) if one.src > 0]
    found = head_map(run, most=7).firings
    assert [(one.layer, one.head, one.dest, one.src) for one in found] == [
        (one.layer, one.head, one.dest, one.src) for one in sites[:7]
    ]
    assert [one.attention for one in found] == pytest.approx([one.attention for one in sites[:7]], rel=1e-6)


def test_a_pattern_tells_how_many_keys_a_window_leaves(client: httpx.Client) -> None:
    run = tiny_model("mistral").run(list(range(1, 13)))
    seen = Live(run).ask("pattern", {"model": "this", "prompt": list(run.token_ids), "layer": 1, "head": 0})["visible"]
    assert seen == run.attention_run(1).visible().sum(-1).tolist() and max(seen) < len(run)
    assert ask(client, "pattern", prompt=PROMPT, layer=3, head=6)["visible"] == list(range(1, 16))


def test_pattern(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "pattern", prompt=PROMPT, layer=3, head=6)
    weights = run.pattern(3)[6].double().numpy()
    bytes_ = np.frombuffer(base64.b64decode(told["triangle"]), np.uint8)
    assert len(bytes_) == 15 * 16 // 2 and told["dests"] == list(range(15))
    for dest in range(15):
        row = weights[dest, : dest + 1]
        assert told["weights"][dest] == pytest.approx(row.tolist(), abs=1e-6)
        own = bytes_[dest * (dest + 1) // 2 :][: dest + 1]
        assert np.abs(own / 255 - row).max() <= 0.5 / 255 + 1e-6
    assert ask(client, "pattern", prompt=PROMPT, layer=3, head=6, dests=[-1])["dests"] == [14]
    assert "there is no head 3.8" in refused(client, "pattern", prompt=PROMPT, layer=3, head=8)


def test_a_firing(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "firing", **FIRING)
    firing = run.explain((3, 6), 14, 11)
    own = plain(firing.record())
    for side, other in zip(told["sides"], own["sides"], strict=True):
        for one in side["signals"]:
            label, predicted = one.pop("label"), one.pop("predicted")
            assert predicted == firing.attention - one["alone"] and ("(14:to" in label or "(11:gave" in label)
        assert side == other
    assert {name: told[name] for name in own if name != "sides"} == {n: own[n] for n in own if n != "sides"}
    assert told["fires"] and told["why"] == "here" and told["note"] is None
    assert told["row"] == pytest.approx(run.pattern(3)[6, 14].tolist(), abs=1e-6)
    split = plain(run.channels((3, 6), 14, 11).record())
    assert {name: told["channels"][name] for name in split} == split
    assert sum(split["relative_terms"]) + split["relative_rest"] == pytest.approx(split["relative_attention"], abs=1e-4)


def test_why_not(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "firing", **{**FIRING, "src": 5})
    own = run.explain((3, 6), 14, 5, why_not=True)
    assert not told["fires"] and told["why"] == "not" and told["sides"][0]["after"] == own.sides[0].after
    assert all(one["predicted"] == own.attention + one["alone"] for side in told["sides"] for one in side["signals"])
    few = ask(client, "firing", **{**FIRING, "dest": 1, "src": 0})
    assert few["sides"] == [] and "so few keys" in few["note"]
    assert "below tau" in ask(client, "firing", **{**FIRING, "src": 5}, why="here")["note"]
    assert ask(client, "firing", **{**FIRING, "src": 5}, tau=0.01)["why"] == "here"


@pytest.mark.parametrize(("side", "mode"), [("dest", "exact"), ("src", "local")])
@pytest.mark.parametrize("action", ["remove", "boost"])
def test_intervene(client: httpx.Client, run: keyhole.Run, side: Any, mode: Any, action: str) -> None:
    told = ask(client, "intervene", **FIRING, side=side, signals=[0, 1], mode=mode, action=action, draws=2)
    firing = run.explain((3, 6), 14, 11)
    cut = Cut(3, 6, 14, 11, firing.side(side).signals[:2])
    metric = Metric(14, (int(run.logits[-1].argmax()),))
    (own,) = intervene_by_hand(run, [cut], metric, mode=mode, boost=action == "boost")
    for name in ("before", "after", "predicted", "metric_before", "metric_after", "norm_ratio", "cosine"):
        assert told[name] == pytest.approx(getattr(own, name), abs=1e-5), name
    assert told["agrees"] and len(told["controls"]) == 2 and abs(told["after"] - told["predicted"]) < 1e-4
    assert (told["after"] < told["before"]) == (action == "remove")
    assert told["row_after"][11] == pytest.approx(told["after"], abs=1e-6) and sum(told["row_after"]) == pytest.approx(
        1, abs=1e-5
    )
    assert told["row_before"][11] == pytest.approx(told["before"], abs=1e-6)
    assert sum(one["probability"] for one in told["answers_after"]) <= 1.000001 and len(told["answers_before"]) == 10


def test_a_whole_side_falls_to_what_the_search_said(client: httpx.Client, run: keyhole.Run) -> None:
    firing = run.explain((3, 6), 14, 11)
    for side in firing.sides:
        told = ask(client, "intervene", **FIRING, side=side.side, draws=3)
        assert told["after"] == pytest.approx(side.after, abs=1e-4) and told["after"] < firing.tau
        random = ask(client, "intervene", **FIRING, side=side.side, action="random", draws=3)
        assert (
            random["after"] == random["controls"][0]["after"] == pytest.approx(told["controls"][0]["after"], abs=1e-6)
        )
        assert abs(random["after"] - random["before"]) < told["before"] - told["after"]
    free = ask(client, "intervene", **FIRING, side="dest", signals=[0], mode="global", draws=0)
    assert free["agrees"] is None and free["answers_after"] != free["answers_before"]
    assert "there is no signal 99" in refused(client, "intervene", **FIRING, side="dest", signals=[99])
    assert "nothing is left" in refused(client, "intervene", **FIRING, side="dest", signals=[0], channels=[])
    wrong = refused(client, "intervene", **FIRING, side="dest", mode="nonsense")
    assert wrong == "mode should be 'exact', 'local' or 'global', not 'nonsense'."


def test_an_mlp(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "mlp", prompt=PROMPT, layer=3, pos=14, target=["Mary"], against=["John"])
    own = run.explain_mlp(3, 14, run.toward("Mary", "John"))
    assert told["value"] == pytest.approx(own.value, rel=1e-5) and told["left"] == pytest.approx(own.left, abs=1e-5)
    assert [one["part"] for one in told["causes"]] == pytest.approx([one.part for one in own.causes], abs=1e-5)
    assert [tuple(one) for one in told["neurons"]] == [(i, pytest.approx(share, abs=1e-5)) for i, share in own.neurons]
    assert told["removed"]["agrees"] and told["removed"]["left"] == pytest.approx(own.left, abs=1e-3)


def shown(circuit: keyhole.Circuit) -> Any:
    """A circuit's document as pages get it: without the directions of MLPs, which no view shows."""
    return json.loads(replace(circuit, directions={}).to_json())


def test_circuits(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "trace", prompt=PROMPT, target=["Mary"], against=["John"], through="heads")
    assert told == {"circuit": shown(run.trace("Mary", against="John", through="heads")), "names": None}
    svt = ask(client, "trace", prompt=PROMPT, target=["Mary"], against=["John"], method="svt")["circuit"]
    assert svt == json.loads(run.trace("Mary", against="John", method="svt").to_json())
    asked = {"prompt": PROMPT, "target": ["Mary"]}
    circuit = run.trace("Mary")
    assert ask(client, "trace", **asked)["circuit"] == shown(circuit)
    story = ask(client, "story", **asked)
    own = circuit.story()
    assert story["held"] == pytest.approx(own.held) and story["text"] == str(own)
    assert [one["share"] for one in story["paths"]] == pytest.approx([one.share for one in own.paths])
    assert story["lines"] == plain(story_lines(circuit, own))
    assert [one["effect"] for one in story["words"]] == pytest.approx([one.effect for one in own.words])
    assert story["paths"][0]["text"].startswith("2:Mary -> ") and story["paths"][0]["steps"][0]["effect"] > 1
    verified = ask(client, "verify", **asked, draws=1)
    assert verified["agrees"] and verified.pop("text")
    known = plain(circuit.verify(draws=1).record())
    assert [row["node"] for row in verified["rows"]] == [row["node"] for row in known["rows"]]
    for row, other in zip(verified["rows"], known["rows"], strict=True):
        assert row["after"] == pytest.approx(other["after"], abs=1e-5) and row["predicted"] == pytest.approx(
            other["predicted"], abs=1e-5
        )
    number = next(i for i, edge in enumerate(circuit.edges) if edge.side == "dest")
    (row,) = ask(client, "verify", **asked, edge=number)["rows"]
    assert row["edge"] == number and row["after"] == next(
        pytest.approx(one["after"], abs=1e-5) for one in known["rows"] if one["edge"] == number
    )
    assert "not a signal of a firing" in refused(client, "verify", **asked, edge=0)
    assert "there is no edge 9999" in refused(client, "verify", **asked, edge=9999)
    assert "start keyhole explore with --names" in refused(client, "names", **asked)


def test_names(run: keyhole.Run, tmp_path: Path) -> None:
    circuit = run.trace("Mary")
    subjects = distinct(signal_subjects(circuit))[:3]
    passes = judge.Tested("detection", "top", 10, 0, 10, 1.0, 1.0, 1.0, None, 1e-4, 1e-3, 0.01, 0.01)
    tests = (passes, replace(passes, passing=0.5), replace(passes, corrected=0.5))  # the last one fails
    texts = ("dest is </script>", "dest is a number", "src is a name")
    named = [
        Named(one.id, one.kind, one.head, one.about, Name(text, "hand"), (test,), ())
        for one, text, test in zip(subjects, texts, tests, strict=True)
    ]
    path = tmp_path / "names.json"
    naming = Naming("organism", "hand", 0, tuple(named), (), run.model.fingerprint())
    save_naming(naming, path)
    with serving(Given(names=path)) as own, own.client() as client:
        assert client.get("/api/hello").json()["names"] is True
        told = ask(client, "names", prompt=PROMPT, target=["Mary"])
        first, second, third = (told["edges"].get(str(one.about["edge"])) for one in subjects)
        assert first == {"text": "dest is </script>"} and third is None  # what fails is no name
        assert second == {"text": "dest is a number (above chance, not so here)"}
        known = edge_names(circuit, naming).items()
        assert told["edges"] == {str(circuit.edges.index(edge)): {"text": text} for edge, text in known}
        assert ask(client, "trace", prompt=PROMPT, target=["Mary"])["names"] == told["edges"]
        assert set(told["heads"]) == {f"{one.head[0]}.{one.head[1]}" for one in subjects}


def test_trace_from_here(client: httpx.Client, run: keyhole.Run) -> None:
    told = ask(client, "trace", prompt=PROMPT, **{"from": {"layer": 3, "head": 6, "dest": 14, "src": 11}})["circuit"]
    assert told == shown(run.trace(metric=firing_probe(run, (3, 6), 14, 11), end=14))
    ends = [edge for edge in told["edges"] if edge["side"] == "target"]
    assert len(ends) == 1
    last = ends[0]
    seed = told["nodes"][last["from"]]
    assert (seed["kind"], seed["layer"], seed["head"], seed["src"]) == ("head", 3, 6, 11) and last["influence"] == 1
    assert {traced["node"] for traced in told["firings"]} >= {last["from"]}
    assert "leave target and against out" in refused(
        client, "trace", prompt=PROMPT, target=["Mary"], **{"from": {"layer": 3, "head": 6}}
    )


def test_compare(client: httpx.Client, run: keyhole.Run) -> None:
    a, b = {"prompt": PROMPT}, {"prompt": PROMPT, "target": ["Mary"], "against": ["John"]}
    told = ask(client, "compare", a=a, b=b)
    one, other = run.trace(), run.trace("Mary", against="John")
    assert told["a"] == shown(one) and told["b"] == shown(other)
    assert told["comparison"] == plain(keyhole.compare(one, other, model=run.model, members=0).record())


def test_where(client: httpx.Client, organism: keyhole.Model, run: keyhole.Run) -> None:
    from keyhole.naming.corpus.gather import where
    from keyhole.naming.subjects.operands import read_what

    told = ask(client, "where", what="3.1:0", tokens=2000, top=3)
    assert told == plain(
        {**asdict(where(organism, read_what(organism, "3.1:0"), tokens=2000, top=3)), "model": "organism"}
    )
    heard = ask(client, "where", **FIRING, side="dest", signal=0, tokens=2000, top=3)
    assert heard["id"] == "3.6 dest 3 <- mlp 0" and len(heard["shown"]) == 3
    circuit = run.trace()
    number = next(i for i, edge in enumerate(circuit.edges) if edge.side == "src")
    edge = ask(client, "where", circuit={"prompt": PROMPT}, edge=number, tokens=2000, top=3)
    assert edge["id"].endswith(f"#{number}")
    assert "is no signal" in refused(client, "where", circuit={"prompt": PROMPT}, edge=0)
    assert "keyhole where" in refused(client, "where", what="/etc/passwd#1")


def test_stores(client: httpx.Client, organism: keyhole.Model, outcomes: list[Any], store: Path) -> None:
    (told,) = client.get("/api/stores").json()["stores"]
    opened = keyhole.open_store(store)
    assert (
        told["counts"] == opened.counts()
        and told["prompts"] == 10
        and set(told["labels"]) == set(opened.manifest.labels)
    )
    every = ask(client, "outcomes", store="ioi.store", limit=4, offset=5)
    assert every["total"] == 10 and [row["index"] for row in every["rows"]] == [5, 6, 7, 8]
    assert [row["status"] for row in every["rows"]] == [one.status for one in outcomes[5:9]]
    assert (
        every["rows"][0]["prompt"] == outcomes[5].example.text
        and every["rows"][0]["labels"] == outcomes[5].example.labels
    )
    some = ask(client, "outcomes", store="ioi.store", where={"number": 3, "status": "circuit"})
    assert [row["index"] for row in some["rows"]] == [3]
    assert "no column 'nonsense'" in refused(client, "outcomes", store="ioi.store", where={"nonsense": "x"})
    assert ask(client, "circuit", store="ioi.store", index=1)["circuit"] == json.loads(opened.circuit(1).to_json())
    assert "nothing to trace" in refused(client, "circuit", store="ioi.store", index=7)
    assert "no store '../x'" in refused(client, "circuit", store="../x", index=7)
    assert ask(client, "verify", store="ioi.store", index=1, draws=0, edges=False)["agrees"]
    assert "families need 10" in refused(client, "families", store="ioi.store")


def test_families_and_sinks(organism: keyhole.Model, tmp_path: Path) -> None:
    examples = ioi(12, seed=1)
    found = keyhole.trace_many(organism.run_many([one.text for one in examples]), [one.answer for one in examples])
    told: dict[str, Any] = {"correct": True, "predicted": "Mary", "probability": 0.75, "difference": 1.0}
    pairs = enumerate(zip(examples, found, strict=True))
    kept = [Outcome(i, one, "circuit" if own.heads else "headless", own, **told) for i, (one, own) in pairs]
    whole = stored(tmp_path / "some.store", kept).path

    with serving(Given(stores=(whole,))) as own, own.client() as client:
        number = begin(client, kind="families", store=whole.name, all=True)
        *before, (name, told) = events(client, number)
        assert name == "result" and any(name == "progress" for name, _ in before)
        found = families(keyhole.open_store(whole), where={})
        record = plain(found.record())
        assert {key: told[key] for key in record} == record
        n = len(found.sample)
        assert told["sample"] == found.sample.tolist() and len(told["tree"]) == n - 1 and len(told["labels"]) == n
        levels = np.frombuffer(base64.b64decode(told["distances"]), np.uint8).reshape(n, n)
        assert np.abs(levels / 255 - found.distances).max() <= 0.5 / 255 + 1e-6
        sinks = ask(client, "sinks", store=whole.name, prompts=6, draws=19, controls=1)
        direct = plain(keyhole.sinks(whole, organism, prompts=6, draws=19, controls=1).record())
        assert sinks["share"] == direct["share"] and [side["found"] for side in sinks["sides"]] == [
            s["found"] for s in direct["sides"]
        ]


def test_contrast(client: httpx.Client, organism: keyhole.Model) -> None:
    from keyhole.features.contrast import Selection, StudySettings, report, study
    from keyhole.features.contrast.lists import built_in

    told = ask(
        client, "contrast", what="boxes", feature="order", prompts=24, tests=8, permutations=19, answers=2, draws=2
    )
    fits, test = built_in(organism, "boxes", (24, 8), feature="order", how={"wording": "plain", "n_boxes": 9})
    settings = StudySettings(Selection("accuracy", 0.3), permutations=19, answers=2, draws=2)
    own = plain(report.record(study(organism, fits, test, settings=settings)))
    assert told["selected"] == own["selected"] and len(told["heads"]) == 32
    for head, other in zip(told["heads"], own["heads"], strict=True):
        assert head["features"]["order"]["share"] == pytest.approx(
            other["features"]["order"]["share"], rel=1e-3, nan_ok=True
        )
    assert [(case["head"], case["why"]) for case in told["no_feature"]] == [
        (case["head"], case["why"]) for case in own["no_feature"]
    ]
    assert [case["head"] for case in told["no_feature"]] == told["selected"]  # a query that never varies
    cloud = told["clouds"][told["selected"][0]]["order"]
    assert len(cloud["queries"]) == len(cloud["keys"]) == len(cloud["labels"]) == 24 and sum(cloud["shares"]) <= 1.0001


def test_requests_are_read_strictly(client: httpx.Client) -> None:
    assert "has no 'prmpt'" in refused(client, "run", prompt=PROMPT, prmpt=1)
    assert "needs prompt" in refused(client, "run")
    assert "a list of token ids or a list of messages" in refused(client, "run", prompt=[True])
    assert refused(client, "run", prompt=PROMPT, top=0) == "top should be at least 1, not 0."
    assert refused(client, "firing", **{**FIRING, "layer": "3"}) == "layer should be a whole number, not '3'."
    assert "there is no layer 9" in refused(client, "firing", **{**FIRING, "layer": 9})
    assert "comes after dest" in refused(client, "firing", **{**FIRING, "dest": 3})
    assert refused(client, "firing", **FIRING, why="because") == "why should be 'auto', 'here' or 'not', not 'because'."
    assert refused(client, "firing", **FIRING, tau=[]) == "tau should be 'dynamic' or a number, not []."
    for seed in (-1, 1 << 70):  # generators differ in what they take
        assert "seed should be at" in refused(client, "intervene", **FIRING, side="dest", seed=seed)
    inner = {"a": {"prompt": PROMPT}, "b": {"prompt": PROMPT, "sufficient": {"like": ["A cat", 3]}}}
    assert refused(client, "compare", **inner) == "b.sufficient.like[1] should be a text, not 3."
    both = {"store": "ioi.store", "index": 0, "prompt": PROMPT, "end": 3}
    assert "of a store is as it was traced: leave prompt, end out" in refused(client, "trace", **both)
    assert refused(client, "trace", store="ioi.store") == "this request needs index."
    assert refused(client, "stores", more=1) == "this request has no 'more': it takes none."


def test_long_prompts_are_refused_before_they_run(store: Path) -> None:
    with serving(Given(tokens=20)) as own, own.client() as client:
        assert "takes 20" in refused(client, "run", prompt=" ".join(["Mary"] * 21))
        assert len(own.kept.runs.kept) == 0


def test_texts_that_look_like_pages_stay_texts(client: httpx.Client) -> None:
    answer = client.post("/api/run", json={"prompt": "</script><img src=x onerror=alert(1)>"})
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"


# -- the command ---------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "keyhole", "explore", "--no-browser"]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[subprocess.Popen[str], str, float]]:
    begun = time.monotonic()
    made = subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    assert made.stdout is not None
    address = made.stdout.readline().strip()
    yield made, address, time.monotonic() - begun
    made.kill()
    made.wait()


def test_memory_is_flat_over_two_hundred_requests(process: tuple[subprocess.Popen[str], str, float]) -> None:
    made, address, took = process
    assert (
        address.startswith("http://127.0.0.1:") and "/?token=" in address and took < 10
    )  # 1 to 2 s on an idle machine
    base = address.partition("/?")[0]
    with httpx.Client(base_url=base, headers={"Origin": base}, timeout=60, follow_redirects=True) as client:
        client.get(address)
        names = ("Mary", "John", "Anna", "Peter", "Sarah", "Carl", "Emily", "Simon")

        def some(n: int) -> None:
            for i in range(n):
                prompt = f"When {names[i % 8]} and {names[i // 8 % 2]} went to the store, John gave a drink to"
                kind = "trace" if i % 20 == 0 else ("run", "heads", "firing", "pattern")[i % 4]
                more = {"layer": 3, "head": i % 8} if kind in ("firing", "pattern") else {}
                ask(client, kind, prompt=prompt, **more)

        some(40)  # what is kept is full then
        before = psutil.Process(made.pid).memory_info().rss
        some(200)
        grown = psutil.Process(made.pid).memory_info().rss - before
    assert grown < 24 << 20, f"{grown >> 20} MB more after 200 requests"


def test_a_port_in_use_is_one_line(process: tuple[subprocess.Popen[str], str, float]) -> None:
    port = process[1].partition("/?")[0].rpartition(":")[2]
    told = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, timeout=60, env=_environment())
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert f"cannot listen on 127.0.0.1:{port}" in told.stderr and "--port 0" in told.stderr


def test_ctrl_c_ends_it_quietly(process: tuple[subprocess.Popen[str], str, float]) -> None:
    made, address, _ = process
    base = address.partition("/?")[0]
    with httpx.Client(base_url=base, headers={"Origin": base}, timeout=30, follow_redirects=True) as client:
        client.get(address)
        number = begin(client, kind="where", what="3.1", tokens=2_000_000)
        for name, _ in events(client, number):
            if name == "progress":
                break
        made.send_signal(signal.SIGINT)  # with work under way
        assert made.wait(10) in (0, 130)
    assert made.stdout is not None and made.stderr is not None
    assert made.stdout.read() == "" and made.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "nowhere"], "is no store"),
        (["--names", "nowhere.json"], "no file of names"),
        (["--host", "no.such.host.invalid"], "no address of this machine"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1"),
    ],
)
def test_what_cannot_be_explored_is_refused_at_once(
    options: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(keyhole.KeyholeError, match=said):
        command_line(["explore", "--port", "0", "--no-browser", *options], standalone_mode=False)
    assert ("opens this server to the network" in caplog.text) == ("--host" in options)


def test_models_are_arguments_or_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Given] = []
    monkeypatch.setattr("keyhole.web.server.listen.serve", lambda given, **_: asked.append(given))
    command_line(["explore", "a.gguf", "-m", "b.gguf", "--model", "c.gguf", "--no-browser"], standalone_mode=False)
    assert [given.models for given in asked] == [("a.gguf", "b.gguf", "c.gguf")]


def test_what_is_measured_of_a_circuit(client: httpx.Client, run: keyhole.Run) -> None:
    asked = {"prompt": PROMPT, "target": ["Mary"], "against": ["John"]}
    circuit = run.trace("Mary", against="John")
    line = ask(client, "faithfulness", **asked)
    own = plain(circuit.effects(what=("words", "faithfulness")).measured.record())
    assert line.keys() == own.keys() and line["edges"] == [] and line["words"] == pytest.approx(own["words"], abs=1e-4)
    assert line["faithfulness"]["kept"] == pytest.approx(own["faithfulness"]["kept"], abs=1e-4)
    everything = ask(client, "effects", **asked, counterfactual=OTHER_NAMES)
    theirs = circuit.effects(counterfactual=OTHER_NAMES).measured
    assert everything["baseline"] == theirs.baseline and len(everything["nodes"]) == len(circuit.nodes)
    assert everything["edges"] == pytest.approx(theirs.edges, abs=1e-4)
    drawn = ask(client, "like", prompt=PROMPT)
    assert drawn["task"] == "ioi" and len(drawn["prompts"]) == 32 and PROMPT not in drawn["prompts"]
    assert ask(client, "like", prompt=OTHER_NAMES) == {"task": None, "prompts": []}
    mean = ask(client, "effects", **asked, like="task")
    assert mean["baseline"] == "the mean of 32 prompts like this one" and len(mean["faithfulness"]["others"]) == 8
    assert ask(client, "effects", **asked, like=drawn["prompts"])["faithfulness"]["others"] == []  # no answers to texts


def test_a_circuit_that_suffices_is_asked_for_like_any_other(client: httpx.Client, run: keyhole.Run) -> None:
    asked = {"prompt": PROMPT, "target": ["Mary"], "against": ["John"], "sufficient": {"level": 0.8}}
    found = ask(client, "trace", **asked)["circuit"]
    own = json.loads(run.sufficient("Mary", against="John", level=0.8).to_json())
    assert found["parameters"] == own["parameters"] and found["nodes"] == own["nodes"]
    assert found["measured"]["faithfulness"]["kept"] == pytest.approx(own["measured"]["faithfulness"]["kept"], abs=1e-4)
    assert ask(client, "verify", **asked, draws=0)["agrees"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"like": ["A cat"] * 65}, "like should be 'task' or a list of at most 64, not ['A cat', "),
        ({"like": ["a" * 8001]}, "like[0] should be a text of at most 8,000 characters, not 'aaa"),
        ({"like": "A cat"}, "like should be 'task' or a list, not 'A cat'"),
        ({"like": [["A cat"]]}, "like[0] should be a text, not ['A cat']"),
        ({"like": ["A cat"]}, "prompts like this one have as many tokens, 15: 'A cat' has 3"),
        ({"like": [PROMPT]}, "at least 8 different prompts like this one"),
        ({"counterfactual": 3}, "counterfactual should be a text, not 3"),
        ({"counterfactual": "a" * 8001}, "counterfactual should be a text of at most 8,000 characters"),
        ({"like": "task", "counterfactual": PROMPT}, "one baseline at a time"),
        ({"level": 2}, "level is 2"),
        ({"level": "all"}, "level should be a number, not 'all'"),
        ({"both_signs": 1}, "both_signs should be true or false, not 1"),
        ({"signs": "both"}, "this request has no 'signs'"),
    ],
)
def test_odd_questions_about_what_suffices(client: httpx.Client, asked: dict[str, Any], said: str) -> None:
    body = {"prompt": PROMPT, "target": ["Mary"], "against": ["John"], "sufficient": asked}
    answer = client.post("/api/trace", json=body)
    assert answer.status_code == 400 and said in answer.json()["error"]


def test_what_suffices_is_for_an_answer(client: httpx.Client) -> None:
    firing = {"layer": 3, "head": 6, "dest": 14, "src": 11}
    answer = client.post("/api/trace", json={"prompt": PROMPT, "from": firing, "sufficient": {}})
    assert answer.status_code == 400 and "is one of an answer: leave from out" in answer.json()["error"]
    odd = client.post("/api/effects", json={"prompt": OTHER_NAMES, "target": ["Albert"], "like": "task"})
    assert odd.status_code == 400 and "this prompt is of no task" in odd.json()["error"]
