"""Are two circuits the same? Same graph, same choices; numbers to the rounding that other shapes of products bring."""

from dataclasses import fields

import pytest

from keyhole.circuits.circuit import Circuit

NUMBERS = {"rel": 1e-5, "abs": 1e-6}  # float32, on any machine; 1.3e-6 is the most that was seen here


def assert_alike(one: Circuit, other: Circuit) -> None:
    """Nodes, edges, channels, what was removed, reasons of leaves: equal. Weights, influence: to rounding."""
    assert one.nodes == other.nodes and one.token_ids == other.token_ids and one.leaves == other.leaves
    assert one.parameters.target_ids == other.parameters.target_ids
    assert [named(edge) for edge in one.edges] == [named(edge) for edge in other.edges]
    for mine, its in zip(one.edges, other.edges, strict=True):
        for name in ("weight", "ig", "alone", "influence"):
            assert getattr(mine, name) == pytest.approx(getattr(its, name), **NUMBERS), (name, mine, its)
    assert one.influence == pytest.approx(other.influence, **NUMBERS)
    assert [weight or 0.0 for weight in one.attention] == pytest.approx([w or 0.0 for w in other.attention], **NUMBERS)
    assert [taken(firing) for firing in one.firings] == [taken(firing) for firing in other.firings]
    assert [(mlp.node, mlp.causes) for mlp in one.mlps] == [(mlp.node, mlp.causes) for mlp in other.mlps]
    for mine, its in zip(one.mlps, other.mlps, strict=True):
        for name in ("offset", "left", "kept", "cancellation"):
            assert getattr(mine, name) == pytest.approx(getattr(its, name), rel=1e-3, abs=1e-5), (name, mine, its)
        # where all input goes, what is left is rounding, and a norm makes it as large as any input
        assert mine.left_renormed == pytest.approx(its.left_renormed, rel=1e-3, abs=1e-4)


def named(edge: object) -> tuple[object, ...]:
    """An edge without its numbers."""
    return tuple(getattr(edge, name) for name in ("sender", "receiver", "side", "channels"))


def taken(firing: object) -> tuple[object, ...]:
    """What was removed from a firing, in order."""
    sides = [[(r.writer, r.channel) for r in getattr(firing, side)] for side in ("dest", "src")]
    assert {field.name for field in fields(firing)} == {"node", "tau", "visible", "dest", "src"}
    return firing.node, firing.tau, firing.visible, *sides
