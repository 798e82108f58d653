"""Bulk runs: what is kept of every prompt, and that nothing which interrupts them changes a digit."""

import errno
import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import keyhole
from alike import NUMBERS
from bulk_runs import (
    PART,
    PARTS,
    TASK,
    N,
    again,
    at_part,
    command,
    files_of,
    records,
    require_same,
    statuses,
    unfinished,
)
from commands import keyhole as typed
from keyhole import KeyholeError, Model, Probability, Run
from keyhole.models.tokens import token_id
from keyhole.store import Local, Tracing, batches, bulk, make_store, open_store, parts
from keyhole.store import workers as worker
from keyhole.store.batches import Block, trace_block
from keyhole.store.workers import load_again, source_of
from keyhole.tasks import Example, ioi, pronouns

pytestmark = pytest.mark.xdist_group("bulk")  # they share a store that is made once
KILLS = 5


def test_circuits_are_those_of_one_prompt_at_a_time(organism: Model, tmp_path: Path) -> None:
    prompts = ioi(6, seed=3)
    store = bulk(prompts, organism, out=tmp_path / "store", tracing=Tracing(batch=4), part=5)
    assert statuses(store) == ["circuit"] * 6 and store.counts()["circuit"] == 6
    for outcome, example in zip(store, prompts, strict=True):
        run = organism.run(example.text)
        alone = run.trace(example.answer, against=list(example.against))
        kept = outcome.circuit
        assert kept is not None and outcome.example == example
        assert kept.nodes == alone.nodes and kept.parameters.seeds == "linear"
        shape = [(edge.sender, edge.receiver, edge.side, edge.channels) for edge in alone.edges]
        assert [(edge.sender, edge.receiver, edge.side, edge.channels) for edge in kept.edges] == shape
        assert [edge.weight for edge in kept.edges] == pytest.approx([edge.weight for edge in alone.edges], **NUMBERS)
        likely, logits = run.logits[-1].double().softmax(-1), run.logits[-1]
        right, other = (token_id(organism, word) for word in (example.answer, example.against[0]))
        assert outcome.probability == pytest.approx(float(likely[right]), abs=1e-6)
        assert outcome.difference == pytest.approx(float(logits[right] - logits[other]), abs=1e-5)
        assert outcome.correct and str(outcome.predicted).strip() == example.answer


def test_what_cannot_be_traced_is_kept_with_the_reason(organism: Model) -> None:
    """And loses no other prompt of its batch."""
    good = ioi(4, seed=3)
    strange = replace(good[0], text="Xyzzy and Plugh went to the store")
    long = replace(good[0], text=" ".join(["Mary"] * 500))
    answered = replace(good[0], answers=("Xyzzy",))
    turned = swapped(good[1])
    block = Block(0, 10, (good[0], strange, good[1], long, turned, answered, good[2]))
    found = trace_block(organism, block, Tracing(batch=7))
    assert [one.index for one in found] == list(range(10, 17))
    assert [one.status for one in found] == ["circuit", "failed", "circuit", "failed", "empty", "failed", "circuit"]
    assert "Xyzzy" in str(found[1].error) and "128 positions" in str(found[3].error)
    assert "does not know 'Xyzzy'" in str(found[5].error) and found[5].correct is None
    assert found[4].correct is False and found[4].difference is not None and found[4].difference < 0
    assert all(one.circuit is None or one.circuit.run is None for one in found), "runs must not outlive their batch"
    skipped = trace_block(organism, block, Tracing(batch=7, wrong="skip"))
    assert [one.status for one in skipped] == ["circuit", "failed", "circuit", "failed", "skipped", "failed", "circuit"]
    assert str(skipped[4].predicted).strip() == good[1].answer


def test_what_is_refused_holds_no_run(organism: Model) -> None:
    """By its traceback an error would, until garbage is looked for: every run of its batch."""
    good = ioi(1, seed=3)[0]
    strange, answered = replace(good, text="Xyzzy and Plugh"), replace(good, answers=("Xyzzy",))

    def runs() -> int:
        return sum(type(one) is Run for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = runs()
        trace_block(organism, Block(0, 0, (good, strange, answered, swapped(good))), Tracing(batch=4))
        assert runs() == before
    finally:
        gc.enable()


def test_a_part_that_cannot_be_kept_loses_no_other(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker.make_part

    def refusing(manifest: Any, number: int, outcomes: Any) -> Any:
        if number == 0:
            raise KeyholeError("weight of edges holds finite numbers.")
        return real(manifest, number, outcomes)

    monkeypatch.setattr(worker, "make_part", refusing)
    with pytest.raises(KeyholeError, match=r"part 0 cannot be kept: weight .* \(2 of 4 prompts\)"):
        bulk(ioi(4, seed=3), organism, out=tmp_path / "store", tracing=Tracing(batch=2), part=2)
    assert len(open_store(tmp_path / "store")) == 2


def test_examples_are_taken_as_they_are(organism: Model, tmp_path: Path) -> None:
    for wrong in ({"n": 3}, {"n": -1}, {"choices": {"order": "ABBA"}}):
        with pytest.raises(KeyholeError, match="2 examples are given"):
            bulk(ioi(2, seed=3), organism, out=tmp_path / "store", **wrong)
    assert not list(tmp_path.iterdir())


def test_a_circuit_that_is_refused_has_failed(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone, even if its whole batch is refused with it."""
    prompts, real = ioi(3, seed=3), batches.trace_many
    bad = organism.run(prompts[1].text).token_ids

    def refusing(runs: Any, *args: Any, **options: Any) -> Any:
        if any(run.token_ids == bad for run in runs):
            raise KeyholeError("no such circuit")
        return real(runs, *args, **options)

    monkeypatch.setattr(batches, "trace_many", refusing)
    found = trace_block(organism, Block(0, 0, tuple(prompts)), Tracing(batch=3))
    assert [(one.status, one.error) for one in found] == [
        ("circuit", None),
        ("failed", "no such circuit"),
        ("circuit", None),
    ]
    assert found[1].correct and found[1].probability is not None


def test_circuits_without_heads_are_counted_apart(organism: Model, tmp_path: Path) -> None:
    store = bulk(pronouns(16, seed=1), organism, out=tmp_path / "store", tracing=Tracing(through="heads"))
    heads = [sum(node.kind == "head" for node in circuit.nodes) for _, circuit in store.circuits()]
    assert 0 < heads.count(0) < 16
    assert store.counts() == {
        **dict.fromkeys(store.counts(), 0),
        "headless": heads.count(0),
        "circuit": 16 - heads.count(0),
    }


def test_seeds_are_linear_where_there_is_a_wrong_answer(organism: Model) -> None:
    prompts = ioi(2, seed=3)
    block = Block(0, 0, (prompts[0], without_wrong(prompts[1])))

    def seeds(tracing: Tracing) -> list[tuple[str, float, tuple[int, ...]]]:
        circuits = [one.circuit for one in trace_block(organism, block, tracing)]
        kept = [circuit.parameters for circuit in circuits if circuit is not None]
        return [(one.seeds, one.seed_tau, one.against_ids) for one in kept]

    wrong = (token_id(organism, prompts[0].against[0]),)
    assert seeds(Tracing()) == [("linear", 0.8, wrong), ("prob", 0.8, ())]
    assert seeds(Tracing(metric="prob")) == [("prob", 0.8, ()), ("prob", 0.8, ())]
    assert seeds(Tracing(metric="linear")) == [("linear", 0.8, wrong), ("linear", 0.8, ())]
    assert seeds(Tracing(metric=Probability(0.9))) == [("prob", 0.9, ()), ("prob", 0.9, ())]


def test_killed_at_random_points_and_gone_on_with(whole: Path, tmp_path: Path) -> None:
    path, rng = tmp_path / "store", random.Random(0)
    written = sorted(file.stat().st_mtime for file in (whole / "parts").iterdir())
    part = (written[-1] - written[0]) / (PARTS - 1)  # seconds

    def kill_later(process: int) -> None:
        before = records(path)
        wait_for(lambda: records(path) > before)
        time.sleep(rng.uniform(0, 2) * part)
        os.kill(process, signal.SIGKILL)

    for _ in range(KILLS):
        killed = typed(*command(path), meanwhile=kill_later)
        assert killed.returncode == -signal.SIGKILL, "it was done before it was killed"
    done = records(path)
    assert KILLS <= done < PARTS
    last = typed(*command(path))
    assert last.returncode == 0, last.stderr
    assert f"{done} of {PARTS} parts are in" in last.stderr and f"{N} prompts, {N} circuits" in last.stdout
    require_same(path, whole)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def interrupt(process: int) -> None:
        wait_for(lambda: records(path) > 0)
        os.kill(process, signal.SIGINT)

    stopped = typed(*command(path), meanwhile=interrupt)
    assert stopped.returncode == 130 and "the same command goes on from there" in stopped.stderr
    assert 0 < records(path) < PARTS and not list(path.rglob("*.part")), "nothing is left half written"


def test_a_damaged_part_is_made_again(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    unfinished(whole, path)
    victim = sorted((path / "edges").glob("*.parquet"))[4]
    victim.write_bytes(victim.read_bytes()[:-100])
    told = typed(*command(path))
    assert told.returncode == 0 and f"edges/{victim.name} is damaged" in told.stderr, told.stderr
    assert f"{PARTS - 1} of {PARTS} parts are in" in told.stderr
    require_same(path, whole)


def test_a_full_disk_loses_nothing(
    organism: Model, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, room = tmp_path / "store", [14]  # files: two parts, and something of the third
    unfinished(whole, path, 3, 4, 5, 6)
    real = parts.replacing

    @contextmanager
    def full(to: Path) -> Iterator[Any]:
        room[0] -= 1
        with real(to) as out:
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield out

    with monkeypatch.context() as patched:
        patched.setattr(parts, "replacing", full)
        with pytest.raises(KeyholeError, match=r"No space left on device.*What was complete stays.*same command"):
            again(organism, path)
    assert records(path) == PARTS - 2 and len(open_store(path)) == N - 2 * PART
    again(organism, path)
    require_same(path, whole)


def test_a_second_writer_is_refused(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with make_store(path, open_store(whole).manifest).writing():
        told = typed(*command(path))
    assert told.returncode == 2 and f"process {os.getpid()} " in told.stderr, told.stderr


def test_a_store_of_something_else_is_refused(organism: Model, whole: Path) -> None:
    """With each difference; and it stays as it was."""
    before = files_of(whole)
    other = keyhole.load()
    with torch.no_grad():
        next(other.hf.parameters())[0, 0] += 1
    with pytest.raises(KeyholeError, match=r"model fingerprint is '[0-9a-f]+' there and '[0-9a-f]+' here"):
        again(other, whole)
    told = typed(*command(whole, "--tau", "0.3", "--wrong", "skip"))
    assert told.returncode == 2
    assert "settings tau is 'dynamic' there and 0.3 here; settings wrong is 'keep' there and 'skip' here" in told.stderr
    with pytest.raises(KeyholeError, match="settings batch is 2 there and 4 here"):
        again(organism, whole, tracing=Tracing(batch=4))
    assert files_of(whole) == before


def test_processes_make_the_same_parts_and_one_may_die(
    organism: Model, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    unfinished(whole, path, *range(4, 14))

    def kill() -> None:
        workers = [one for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())]
        assert len(workers) == 2
        workers[0].kill()

    with caplog.at_level("INFO", "keyhole"):
        again(organism, path, engine=Local(2), progress=at_part(2, kill))
    assert "a worker died" in caplog.text
    require_same(path, whole)


def test_something_unexpected_is_told_with_its_prompt(
    organism: Model, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After everything else was written."""
    path, real = tmp_path / "store", batches.trace_many
    unfinished(whole, path, 3, 4, 5)
    bad = open_store(whole)[13]
    assert bad.circuit is not None
    ids = bad.circuit.token_ids

    def broken(runs: Any, *args: Any, **options: Any) -> Any:
        if any(run.token_ids == ids for run in runs):
            raise RuntimeError("a bug\nwith a second line")
        return real(runs, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(batches, "trace_many", broken)
        with pytest.raises(KeyholeError) as refused:
            again(organism, path)
    told = str(refused.value)
    assert f"part 4 stopped at prompt 13 ({bad.example.text!r}): RuntimeError: a bug (test_bulk.py, line " in told
    assert f"({N - PART} of {N} prompts)" in told and records(path) == PARTS - 1
    again(organism, path)
    require_same(path, whole)


def test_threads_are_as_many_as_the_store_says(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the process has otherwise, and has again afterwards."""
    seen, real = list[int](), batches.trace_many

    def look(*args: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        return real(*args, **options)

    monkeypatch.setattr(batches, "trace_many", look)
    try:
        torch.set_num_threads(2)
        bulk(ioi(6, seed=3), organism, out=tmp_path / "store", part=3, tracing=Tracing(batch=1))
        assert set(seen) == {1} and len(seen) == 6 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_worker_refuses_other_weights(organism: Model) -> None:
    with pytest.raises(KeyholeError, match="other weights under organism"):
        load_again(replace(source_of(organism), fingerprint="0" * 64))
    with pytest.raises(KeyholeError, match=r"a worker cannot load the model: .*save_pretrained"):
        load_again(replace(source_of(organism), path="./nowhere"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--out ioi.store"),
        (["--address", "auto", "--out", "here"], "--engine ray"),
        (["--tau", "2", "--out", "here"], "tau"),
    ],
)
def test_bad_requests(more: list[str], said: str, tmp_path: Path) -> None:
    told = typed("bulk", TASK, *more, folder=tmp_path)
    assert told.returncode == 2 and said in told.stderr and not list(tmp_path.iterdir())


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)


def swapped(example: Example) -> Example:
    """The same prompt, with the wrong answer for the right one."""
    return replace(example, answer=example.against[0], answers=example.against, against=example.answers)


def without_wrong(example: Example) -> Example:
    return replace(example, against=())
