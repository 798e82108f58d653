"""Bulk runs on Ray's workers, real ones: the same tables, whoever is lost and wherever the run was begun."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from bulk_runs import PARTS, again, at_part, records, require_same, unfinished
from keyhole import KeyholeError, Model
from keyhole.store import Ray, engines
from serving import until

pytestmark = pytest.mark.xdist_group("bulk")  # they share a store that is made once


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Of two workers, once for all: it takes seconds to start."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_worker_may_be_killed(cluster: None, organism: Model, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    unfinished(whole, path, *range(4, 18))

    def workers() -> list[psutil.Process]:
        processes = psutil.Process().children(recursive=True)
        return [process for process in processes if (process.cmdline() or [""])[0].startswith("ray::Tracer")]

    def kill() -> None:
        # one of them may have traced two parts before the other has begun, which on a busy machine takes a while
        until(lambda: len(workers()) == 2, seconds=120)
        workers()[0].send_signal(signal.SIGKILL)

    again(organism, path, engine=Ray(2), progress=at_part(2, kill))
    assert ray.is_initialized(), "a cluster that was there before stays"
    require_same(path, whole)


def test_begun_locally_and_finished_under_ray(cluster: None, organism: Model, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    unfinished(whole, path, 3, 11, 12)
    assert records(path) == PARTS - 3
    again(organism, path, engine=Ray(1))
    assert records(path) == PARTS
    require_same(path, whole)


def test_errors_of_workers_are_told_in_our_words(cluster: None) -> None:
    @ray.remote
    class Broken:
        def ready(self) -> None:
            raise ValueError("no keyhole here")

    with pytest.raises(KeyholeError, match=r"a worker could not begin: .*every machine of the cluster needs Keyhole"):
        list(engines._hand_out(ray, [Broken.remote()], None, [None]))


def test_a_cluster_that_is_begun_here_is_ended_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other one; RAY_ADDRESS says where, unless --address does."""
    calls: list[Any] = []
    fake = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda address, **options: calls.append((address, options.get("num_cpus"))),
        shutdown=lambda: calls.append("down"),
    )
    with engines._cluster(fake, Ray(3)._address, 3):
        assert calls == [("local", 3)]
    assert calls.pop() == "down"
    monkeypatch.setattr(engines, "_require_reachable", lambda address: None)
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:1")
    assert Ray()._address == "somewhere:1" and not Ray().here
    with engines._cluster(fake, Ray(address="elsewhere:2")._address, 3):
        assert calls[1:] == [("elsewhere:2", None)]
    calls.clear()
    fake.is_initialized = lambda: True
    with engines._cluster(fake, "local", 3):
        assert not calls
    assert not calls


def test_workers_fit_into_the_cluster() -> None:
    has = SimpleNamespace(cluster_resources=lambda: {"CPU": 16.0, "GPU": 2.0})
    assert engines._room(has, {"num_cpus": 1, "num_gpus": 0}) == 16
    assert engines._room(has, {"num_cpus": 4, "num_gpus": 0}) == 4
    assert engines._room(has, {"num_cpus": 1, "num_gpus": 1}) == 2
    assert engines._room(SimpleNamespace(cluster_resources=dict), {"num_cpus": 1, "num_gpus": 1}) == 1


def test_without_ray_one_sentence_names_the_extra(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KeyholeError, match=r"pip install 'keyhole\[ray\]'"):
        again(organism, tmp_path / "store", engine="ray")
    assert not list(tmp_path.iterdir())


def test_a_cluster_out_of_reach_is_refused() -> None:
    @contextmanager
    def opened() -> Iterator[None]:
        def refuse(address: str, **options: Any) -> None:
            raise ConnectionError("no route\nat all")

        with engines._cluster(SimpleNamespace(is_initialized=lambda: False, init=refuse), "auto", None):
            yield

    with pytest.raises(KeyholeError, match="cannot reach a Ray cluster at auto: no route"), opened():
        pass


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "127.0.0.1:port"])
def test_where_nobody_answers_nothing_is_tried(address: str) -> None:
    """Ray would try again for a quarter of an hour."""
    fake = SimpleNamespace(is_initialized=lambda: False, init=lambda *args, **options: pytest.fail("tried"))
    with pytest.raises(KeyholeError, match=f"cannot reach a Ray cluster at {address}: "):
        engines._cluster(fake, address, None).__enter__()
