"""Numbers that a study tells, from moves, rows and answers whose right values are known beforehand."""

import pytest
import torch

from conftest import tiny_model
from contrasts import collected_of, random_contrast
from keyhole.contrast.answers import answer_effects
from keyhole.contrast.attribution import Attribution, split_query
from keyhole.contrast.collect import collect
from keyhole.contrast.features import Feature
from keyhole.contrast.moves import Move, effect
from keyhole.contrast.pairing import pair_keys
from keyhole.contrast.selection import head_attention


def a_move(lost: float, gained: float, n: int = 50) -> Move:
    """Every sample alike: 0.8 on the original and 0.1 on the target before."""
    weights = (torch.full((n,), weight) for weight in (0.8, 0.1, 0.8 - lost, 0.1 + gained))
    return Move(*weights)


def test_effects_lie_between_random_and_full() -> None:
    own = effect("own", 2, a_move(0.5, 0.3), [a_move(0.1, 0.1), a_move(0.3, 0.3)], a_move(0.7, 0.7))
    assert (own.orig, own.target) == pytest.approx((0.3, 0.4))
    assert (own.shift, own.random, own.full) == pytest.approx((0.4, 0.2, 0.7))  # means of loss and gain
    assert own.normalised == pytest.approx(0.2 / 0.5)
    assert own.interval == pytest.approx((0.4, 0.4)) and own.shift_interval == pytest.approx((0.4, 0.4))


def test_accuracy_is_the_share_of_rows_whose_largest_weight_is_positive() -> None:
    """The positive key always beats the negative one, but in every third row another token beats both."""
    n = 60
    q, k = torch.zeros(n, 1, 4), torch.zeros(n, 2, 1, 4)
    q[:, :, 0], k[:, 0, :, 0] = 1.0, torch.tensor([0.5, 3.0, 3.0]).repeat(n // 3)[:, None]
    (row,) = head_attention(collected_of(q, k, torch.tensor([[1, -1]]).expand(n, 2), rest=1.0))
    assert (row.accuracy, row.among) == pytest.approx((2 / 3, 1.0))
    scores = torch.tensor([[0.5, 0.0, 1.0], [3.0, 0.0, 1.0], [3.0, 0.0, 1.0]]).softmax(-1).mean(0)
    assert (row.positive, row.negative) == pytest.approx(scores[:2].tolist())


def test_explained_shares_of_a_row() -> None:
    logits, rest = torch.tensor([3.0, 1.0, 1.0, 3.0]).double(), torch.tensor([1.0, 1.0, 1.0, 1.0]).double()
    common = Attribution((0, 0), 3, 0, ("a",), (logits - rest)[None], rest, logits, 0.0)
    assert common.explained == pytest.approx(1 - 4 / 20)
    assert common.explained_differences == pytest.approx(1)  # what is left is alike for all keys
    rest = torch.tensor([1.0, 0.0, 0.0, 1.0]).double()
    half = Attribution((0, 0), 3, 0, ("a",), (logits - rest)[None], rest, logits, 0.0)
    assert half.explained == pytest.approx(1 - 2 / 20) and half.explained_differences == pytest.approx(1 - 1 / 4)


@pytest.mark.parametrize("method", ["sequential", "gram_schmidt"])
def test_a_shared_direction_counts_once(method: str) -> None:
    U, q = torch.eye(4).double(), torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    first, second = (
        Feature(name, (0, 0), U[:, s], U[:, s], torch.ones(2)) for name, s in (("a", [0, 1]), ("b", [1, 2]))
    )
    parts = split_query(q, [first, second], method)  # type: ignore[arg-type]
    assert parts.tolist() == [[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]]


def test_answers_are_told_between_the_two_tokens() -> None:
    """How likely the two tokens are together, and how often the original's is likelier: from plain runs."""
    model = tiny_model("gpt2")
    collected = collect(model, random_contrast(model, 8))
    result = answer_effects(collected, {(1, 1): {"x": torch.eye(8)[:, :2]}}, samples=5, draws=1)
    pairing, slots = pair_keys(collected, orig="first").first(5), collected.slots
    mass, right = 0.0, 0
    for slot, orig, target in zip(pairing.slots, pairing.orig, pairing.target, strict=True):  # type: ignore[arg-type]
        prompt, at = slots.query[slot].tolist()
        ids = collected.resolved.prompts[prompt].ids
        likely = model.run(ids[: at + 1]).logits[-1].softmax(-1)
        ours, theirs = (float(likely[ids[int(slots.keys[slot, key, 1])]]) for key in (orig, target))
        mass, right = mass + (ours + theirs) / 5, right + (ours > theirs)
    assert result.samples == 5 and result.right == right / 5
    assert result.mass == pytest.approx(mass, rel=1e-4)
