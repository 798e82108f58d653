"""Wrong shapes are refused while tests run: in arguments, results and records, and in Keyhole's own functions."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import shapes
from keyhole.qk.omega import decompose
from shapes import checked


@checked
def product(a: Float[Tensor, "row inner"], b: Float[Tensor, "inner column"]) -> Float[Tensor, "row column"]:
    return a @ b if len(a) > 1 else b


@checked
@dataclass(frozen=True)
class Pair:
    left: Float[Tensor, "n"]  # noqa: F821
    right: Float[Tensor, "n"]  # noqa: F821

    @property
    def both(self) -> "NoSuchName":  # noqa: F821
        return torch.stack([self.left, self.right])


def test_shapes_agree_within_a_call() -> None:
    assert product(torch.ones(2, 3), b=torch.ones(3, 4)).shape == (2, 4)
    assert product(torch.ones(5, 1), torch.ones(1, 1)).shape == (5, 1)  # another call, other sizes
    for a, b in ((torch.ones(2, 3), torch.ones(4, 2)), (torch.ones(3), torch.ones(3, 2))):
        with pytest.raises(TypeError, match="parameter"):
            product(a, b)
    with pytest.raises(TypeError, match="return"):
        product(torch.ones(1, 3), torch.ones(3, 2))


def test_records_are_checked_when_they_are_made() -> None:
    assert Pair(torch.ones(2), torch.ones(2)).both.shape == (2, 2)
    with pytest.raises(TypeError):
        Pair(torch.ones(2), torch.ones(3))


def test_keyholes_functions_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "ALL", 10**9)  # however often it was called before
    with pytest.raises(TypeError, match="decompose"):
        decompose(torch.ones(1, 4, 2), torch.ones(1, 5, 2))


def test_of_many_calls_some_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "ALL", 3)
    monkeypatch.setattr(shapes, "ONE_IN", 5)
    caught = []

    @checked
    def first(a: Float[Tensor, "n"]) -> Tensor:  # noqa: F821
        return a

    for number in range(20):
        try:
            first(torch.ones(1, 1))
        except TypeError:
            caught.append(number)
    assert caught == [0, 1, 2, 5, 10, 15]
