"""Does a verification answer its two questions, arithmetic and causes, and keep what is finished when it is stopped?"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

import keyhole
from keyhole import show
from keyhole.circuits.circuit import Circuit
from keyhole.cli.app import app
from keyhole.faithfulness import removals
from keyhole.faithfulness.causes import shown_rows, table_cells
from keyhole.faithfulness.removals import Row, Stopped, Verification, What
from keyhole.intervene import edge_cut, intervene, rerun
from keyhole.intervene.cuts import metric_of

PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def circuit(organism: keyhole.Model) -> Circuit:
    return organism.run(PROMPT).trace("Mary", against="John")


@pytest.fixture(scope="module")
def whole(circuit: Circuit) -> Verification:
    return circuit.verify()


def a_row(what: What, drop: float, effect: float, *controls: float) -> Row:
    side, edge = ("mlp", None) if what == "causes" else ("dest", 3 if what == "signal" else None)
    seen = (0.9, 0.9 - drop, 0.9 - drop, True, 5.0, 5.0 - effect)
    return Row(0, side, edge, *seen, controls, tuple(5.0 - one for one in controls), 1.0, 1.0, what)


def many(kind: What = "side") -> list[Row]:
    """Ten without effect and with two controls each: 20 of them, of sizes 0.1 to 2.0."""
    return [a_row(kind, 0.1, 0.0, 0.2 * k + 0.1, -0.2 * k - 0.2) for k in range(10)]


# -- causes ----------------------------------------------------------------------------------------------------------


def test_effects_are_what_the_answer_loses_the_largest_first() -> None:
    rows = a_row("side", 0.5, 2.0), a_row("signal", 0.4, -3.0), a_row("causes", 0.9, 1.0)
    part = Verification("exact", 0, rows).causes
    assert part.answer == 5.0 and [cause.effect for cause in part.ranked] == [-3.0, 2.0, 1.0]
    assert [row.effect for row in shown_rows(Verification("exact", 0, rows), 2)] == [-3.0, 2.0]
    assert all(cause.matters is None for cause in part.ranked), "without controls nothing can be said"
    assert "no controls to compare with" in str(Verification("exact", 0, rows))


def test_what_matters_exceeds_its_own_controls_and_those_of_its_kind() -> None:
    """48 controls, of which 2.45 and 2.0 are the largest: the second is the bar, and p is 1 of 49 above both."""
    good, against = a_row("side", 0.1, 3.0, 0.01, -0.01), a_row("side", 0.1, -2.5, 0.02, 0.0)
    beaten = a_row("side", 0.1, 2.4, 2.45, 0.0)  # by its own control
    among = a_row("side", 0.1, 1.0, 0.01, 0.0)  # larger than its own, not than those of its kind
    narrow = replace(a_row("side", 0.1, 9.0, 0.0, 0.0), same_size=False)
    result = Verification("exact", 2, (*many(), *many(), good, against, beaten, among, narrow))
    (group,) = result.causes.groups
    verdicts = {cause.effect: cause.verdict for cause in group.causes if cause.effect}
    expected = {
        3.0: "supports",
        -2.5: "holds back",
        2.4: "like controls",
        1.0: "like controls",
        9.0: "too few controls",
    }
    assert verdicts == expected
    assert (group.supporting, group.holding_back, len(group.controls)) == (1, 1, 48)
    assert group.bar == pytest.approx(2.0)
    assert {cause.effect: cause.p for cause in group.causes}[3.0] == pytest.approx(1 / 49)
    assert "2 matter, by more than" in str(result) and "1 support the answer, 1 hold it back" in str(result)
    record = result.record()
    assert record["causes"]["order"][:3] == [24, 20, 21] and record["rows"][21]["matters"] is True
    assert record["rows"][21]["effect"] == -2.5 and record["rows"][21]["control_effects"] == pytest.approx((0.02, 0.0))


def test_kinds_are_compared_with_their_own_controls() -> None:
    strong, weak = many("causes"), [a_row("signal", 0.1, 0.5, 0.001, 0.002) for _ in range(10)]
    by_kind = {group.kind: group for group in Verification("exact", 2, (*strong, *weak)).causes.groups}
    assert by_kind["single signals"].supporting == 10 and by_kind["MLPs' causes"].supporting == 0
    assert by_kind["single signals"].bar == 0.01, "less than a hundredth of a logit is of no interest"
    few = Verification("exact", 2, tuple(weak[:9]))
    assert math.isnan(few.causes.groups[0].bar) and "18 controls are too few to tell which matter" in str(few)


def test_effects_below_a_hundredth_do_not_matter() -> None:
    rows = [a_row("signal", 0.1, size, 0.0, 0.0) for size in (0.009, 0.011, *([0.0] * 8))]
    verdicts = [cause.verdict for cause in Verification("exact", 2, tuple(rows)).causes.ranked[:2]]
    assert verdicts == ["supports", "like controls"]


def test_a_circuit_without_an_answer_has_no_effects() -> None:
    """The largest drops of every kind are shown, in turn."""
    rows = [a_row("signal", k / 10, math.nan) for k in (1, 3, 2)] + [a_row("causes", 0.9, math.nan)]
    result = Verification("exact", 0, tuple(replace(row, metric_before=math.nan) for row in rows))
    assert not result.causes.ranked and "has no answer" in str(result)
    assert [row.drop for row in shown_rows(result, 2)] == pytest.approx([0.3, 0.9])


def test_arithmetic_counts_what_is_predicted() -> None:
    off = replace(a_row("side", 0.5, 0.0), predicted=0.402, agrees=False)
    free = replace(a_row("side", 0.5, 0.0), agrees=None, predicted=0.0)
    part = Verification("exact", 0, (a_row("side", 0.2, 0.0), off, free)).arithmetic
    assert (part.agree, part.of, part.tolerance) == (1, 2, 1e-4) and part.largest == pytest.approx(0.002)
    assert "nothing is predicted" in str(Verification("global", 0, (free,)))


def test_effects_are_those_of_removals_by_hand(circuit: Circuit, whole: Verification) -> None:
    assert circuit.run is not None
    metric, before = metric_of(circuit), metric_of(circuit).of(circuit.run.logits[-1])
    rows = whole.edges[:3]
    outcomes = intervene(circuit.run, [edge_cut(circuit, circuit.edges[row.edge]) for row in rows], metric)  # type: ignore[index]
    assert [row.effect for row in rows] == pytest.approx([before - one.metric_after for one in outcomes], abs=1e-5)
    assert whole.causes.ranked[0].effect > 5 and whole.causes.ranked[0].verdict == "supports"
    sizes = [abs(cause.effect) for cause in whole.causes.ranked]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == len(whole.rows)
    cells = table_cells(circuit, whole, shown_rows(whole, 1))
    assert cells[0][2:5] == (
        f"{whole.causes.ranked[0].effect:+.3f}",
        f"{whole.causes.ranked[0].control:+.3f}",
        "supports",
    )


def test_global_removal_counts_an_mlp_once(circuit: Circuit) -> None:
    """However many readers it has: all are seen in one pass, with one answer."""
    free = circuit.verify(mode="global", edges=False, draws=1)
    kinds = {group.kind: len(group.causes) for group in free.causes.groups}
    assert kinds["MLPs' causes"] == len(circuit.mlps) < len(free.chains("dest", "src", "mlp", "target"))
    assert len(free.causes.ranked) == len(free.sides) + len(circuit.mlps)
    exact = circuit.verify(edges=False, draws=1)
    assert [row.effect for row in free.mlps] == pytest.approx([row.effect for row in exact.mlps], abs=1e-5)


def test_an_answer_before_the_last_token(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    circuit = run.trace("Mary", against="John", end=len(run) - 1)
    longer = organism.run(PROMPT + " Mary .")
    earlier = longer.trace("Mary", against="John", end=len(run) - 1)
    for mode in ("exact", "chain"):
        rows, others = (one.verify(mode=mode, edges=False, draws=1).causes.ranked for one in (circuit, earlier))
        assert [cause.effect for cause in rows] == pytest.approx([cause.effect for cause in others], abs=1e-3)


# -- order, time, and stopping ---------------------------------------------------------------------------------------


def stopping(after: int) -> Callable[[int, int], None]:
    """Progress that ends the work, as Ctrl-C does, once so many are done."""

    def progress(done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    return progress


def test_what_is_finished_is_kept(circuit: Circuit, whole: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with the largest influence come first; the same numbers, and nothing of the model is left changed."""
    monkeypatch.setattr(rerun, "_BATCH_TOKENS", 60)  # four copies of the prompt: a removal and its controls
    part = circuit.verify(progress=stopping(20))
    assert part.stopped is not None and part.stopped.of == len(whole.rows) and 20 <= part.stopped.after < 30
    assert len(part.rows) == part.stopped.after and f"stopped after {len(part.rows)} of 63 removals" in str(part)
    named = {(row.what, row.node, row.side, row.edge): row for row in whole.rows}
    order = [(row.what, row.node, row.side, row.edge) for row in part.rows]
    assert [row.effect for row in part.rows] == pytest.approx([named[key].effect for key in order], abs=1e-4)
    assert order == [key for key in named if key in set(order)], "rows are in the order of the circuit"

    def influence(row: Row) -> float:
        return (circuit.edges[row.edge].influence or 0.0) if row.edge is not None else circuit.influence[row.node]

    done = {key: influence(named[key]) for key in order}
    rest = [influence(row) for key, row in named.items() if key not in done]
    assert sum(value >= max(rest) for value in done.values()) >= len(done) - 4 * 4  # by layer within four batches
    assert circuit.verify(draws=0, edges=False).agrees
    assert part.record()["stopped"] == {"after": part.stopped.after, "of": 63} and whole.record()["stopped"] is None


def test_a_stop_before_anything_is_done(circuit: Circuit) -> None:
    for mode in ("exact", "chain"):
        part = circuit.verify(mode=mode, progress=stopping(0))  # type: ignore[arg-type]
        assert part.stopped is not None and part.stopped.after == 0 and not part.rows
        assert "nothing was removed" in str(part) and part.record()["causes"]["order"] == []


def test_the_time_is_told_once_the_first_batch_is_done(
    circuit: Circuit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerun, "_BATCH_TOKENS", 60)
    monkeypatch.setattr(removals, "time", SimpleNamespace(monotonic=lambda: 7.0))  # however busy the machine is
    heard: list[tuple[int, str]] = []
    caplog.set_level(logging.INFO, logger="keyhole")

    def progress(done: int, total: int) -> None:
        assert total == 10 + len(circuit.mlps)
        heard.append((done, caplog.text))

    circuit.verify(edges=False, progress=progress)
    assert heard[0] == (0, "") and heard[-1][0] == 10 + len(circuit.mlps)
    said = next(text for done, text in heard if done)
    assert "about 1 s for 19 removals" in said and caplog.text.count("about") == 1


def test_the_command_shows_what_is_finished_and_ends_as_after_ctrl_c(
    circuit: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    circuit.save(tmp_path / "mary.json")
    monkeypatch.setattr(rerun, "_BATCH_TOKENS", 60)

    @contextmanager
    def bar(what: str, every: float) -> Iterator[Callable[[int, int], None]]:
        yield stopping(5)

    monkeypatch.setattr(show, "paced_bar", bar)
    code = get_command(app)(["verify", str(tmp_path / "mary.json")], standalone_mode=False)
    shown = capsys.readouterr().out
    assert code == 130 and shown.startswith("Verification: organism\n\nstopped after 5 of 63 removals")
    assert "as predicted" in shown and "Causes: does the answer need" in shown


def test_stopped_says_where() -> None:
    assert str(Stopped(120, 309)) == "stopped after 120 of 309 removals, those with the largest influence first"
