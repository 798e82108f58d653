"""Masks with tokens: lists, grounds and dense grounds are the same masks; what is skipped is what nobody reads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import prompts_of, tiny_model
from keyhole import Run
from keyhole.faithfulness.masked import Masked, masked, rows_at_once
from keyhole.faithfulness.shares import MaskedQuestion, question
from keyhole.faithfulness.token_masks import EdgeList, Mask, all_but, everything, no_edges, only
from keyhole.faithfulness.wiring import Wiring
from test_curves import METRIC, REFUSED, by_hand, runs_of
from tiny import VARIANTS

TAKEN = sorted(set(VARIANTS) - REFUSED)


def exists(wiring: Wiring, n: int) -> np.ndarray:
    """Which token-level edges there are; the answer reads the last token alone."""
    there = np.repeat(wiring.joined[:, :, None], n, 2)
    there[:, -1, :-1] = False
    return there


def all_edges(made: Masked) -> EdgeList:
    return np.argwhere(exists(made.wiring, made.words.shape[1]))


def at_a_mean(variant: str, dtype: torch.dtype = torch.float64, length: int = 9) -> tuple[list[Run], Masked]:
    """Three runs of a tiny model; what is cut is replaced by their mean."""
    runs = runs_of(variant, 3, dtype, length)
    made = masked(runs)
    return runs, replace(made, baseline=made.written().mean(1).detach())


def dense(made: Masked, edges: EdgeList) -> np.ndarray:
    kept = np.zeros((*made.wiring.joined.shape, made.words.shape[1]), dtype=bool)
    kept[tuple(edges.T)] = True
    return kept


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


# -- the same mask in several forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", TAKEN)
def test_masks_of_ones_are_the_model(variant: str) -> None:
    """As one value, as a list of all edges, and as a value for each; whatever the baseline is."""
    model = tiny_model(variant)
    runs = model.run_many(prompts_of(model, 12, 12), bos=False)
    made = masked(runs)
    made = replace(made, baseline=torch.randn_like(made.written()[:, 0]))
    every = all_edges(made)
    with torch.no_grad():
        for prompt, run in enumerate(runs):
            masks = [everything(1.0, prompt), only(every, prompt), Mask(no_edges(), 0.0, dense(made, every), prompt)]
            masks += [all_but(no_edges(), prompt), Mask(every, 1.0, 0.5, prompt)]
            for row in made.masked_logits(masks):
                assert close(row, run.logits[-1].to(row), 1e-5)


@pytest.mark.parametrize("variant", TAKEN)
def test_lists_over_all_tokens_are_masks_of_components(variant: str) -> None:
    _, made = at_a_mean(variant)
    wiring, rng = made.wiring, np.random.default_rng(0)
    chosen = wiring.joined & (rng.random(wiring.joined.shape) < 0.4)
    edges = np.argwhere(np.repeat(chosen[:, :, None], made.words.shape[1], 2))
    with torch.no_grad():
        expected = made.logits(torch.from_numpy(chosen).double())
        found = made.masked_logits([only(edges, prompt) for prompt in range(3)])
        rest = made.masked_logits([all_but(edges, prompt) for prompt in range(3)])
        complement = made.logits(torch.from_numpy(wiring.joined & ~chosen).double())
    assert close(found, expected) and close(rest, complement)
    assert not close(found, rest, 1e-3)


@pytest.mark.parametrize("variant", TAKEN)
def test_what_nobody_reads_can_be_skipped(variant: str) -> None:
    """A few edges alone, whose other heads and MLPs are not computed, as with a mask for every single edge."""
    _, made = at_a_mean(variant)
    every, rng = all_edges(made), np.random.default_rng(1)
    lists = [every[rng.choice(len(every), size, replace=False)] for size in (0, 1, 3, 6, 12, 40)]
    last = every[every[:, 1] == len(made.wiring.readers) - 1]
    lists += [np.concatenate([chosen, last[rng.choice(len(last), 3, replace=False)]]) for chosen in lists]
    with torch.no_grad():
        slow = made.masked_logits([Mask(no_edges(), 0.0, dense(made, edges), 1) for edges in lists])
        for edges, expected in zip(lists, slow, strict=True):
            (alone,) = made.masked_logits([only(edges, 1)])  # what nobody reads in this copy is skipped
            assert close(alone, expected)
        assert close(made.masked_logits([only(edges, 1) for edges in lists]), slow)  # or in any copy
    assert not close(slow[-1], slow[0], 1e-3)


def test_edges_are_masked_token_by_token() -> None:
    """A value for every token of every edge, against GPT-2's own modules one reader at a time."""
    runs, made = at_a_mean("gpt2")
    every, rng = all_edges(made), np.random.default_rng(0)
    assert made.baseline is not None
    for ground, value, size in ((0.0, 1.0, 60), (1.0, 0.0, 60), (0.3, 0.8, 500)):
        edges = every[rng.choice(len(every), size, replace=False)]
        mask = torch.full((*made.wiring.joined.shape, 9), ground, dtype=torch.float64)
        mask[tuple(torch.from_numpy(edges.T))] = value
        for prompt, run in enumerate(runs):
            with torch.no_grad():
                (found,) = made.masked_logits([Mask(edges, value, ground, prompt)])
                assert close(found, by_hand(run, mask, made.baseline, made))


def test_copies_side_by_side_do_not_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of every form, of several prompts with a baseline each, together and alone, in parts of any size."""
    runs = runs_of("llama", 3)
    made = masked(runs)
    made = replace(made, baseline=torch.randn_like(made.written()))
    every, rng = all_edges(made), np.random.default_rng(2)
    masks = [everything(0.4, 2)]
    for prompt in range(3):
        edges = every[rng.choice(len(every), 20 + prompt, replace=False)]
        half = exists(made.wiring, 9) & (rng.random((*made.wiring.joined.shape, 9)) < 0.5)
        masks += [
            only(edges, prompt),
            Mask(edges, 1.0, half, prompt),
            all_but(edges, prompt),
            Mask(edges, 0.3, 0.0, prompt),
        ]
    with torch.no_grad():
        alone = torch.cat([made.masked_logits([mask]) for mask in masks])
        assert close(made.masked_logits(masks), alone)
        for prompt, mask in enumerate(masks[1:5]):
            single = replace(masked([runs[mask.prompt]]), baseline=made.baseline[:, mask.prompt])
            assert close(single.masked_logits([replace(mask, prompt=0)])[0], alone[1 + prompt])
        monkeypatch.setattr("keyhole.faithfulness.masked.FLOATS", 5 * len(made.wiring.writers) * made.words[0].numel())
        assert rows_at_once(made) == 5 and close(made.masked_logits(masks), alone)


def asked_of(variant: str, length: int = 9) -> MaskedQuestion:
    """A question about a tiny model; the baseline is the mean of its three prompts."""
    from keyhole.faithfulness.baseline import Baseline

    runs, made = at_a_mean(variant, length=length)
    assert made.baseline is not None
    return question(runs[0], METRIC, Baseline("mean", "a mean", made.baseline))


# -- channels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["gpt2", "llama", "qwen3"])
def test_channels_are_parts_of_an_edge(variant: str) -> None:
    """All channels of an orthonormal basis are the edge; a list with some of them and one with the others add up."""
    _, made = at_a_mean(variant)
    wiring = made.wiring
    reader = next(i for i, r in enumerate(wiring.readers) if (r.side, r.layer, r.head) == ("dest", 2, 1))
    edges = np.array([[writer, reader, 8] for writer in (0, 3, 7)])
    basis = torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    some, others = basis[:, :9], basis[:, 9:]

    def logits(mask: Mask) -> Tensor:
        with torch.no_grad():
            return made.masked_logits([mask])[0]

    whole = Mask(edges, 0.0, 1.0, channels=(basis,) * 3)
    assert close(logits(whole), logits(all_but(edges)))
    part = logits(Mask(edges, 0.0, 1.0, channels=(some,) * 3))
    assert not close(part, logits(everything()), 1e-6) and not close(part, logits(all_but(edges)), 1e-6)
    both = Mask(np.concatenate([edges, edges]), 0.0, 1.0, channels=(some,) * 3 + (others,) * 3)
    assert close(logits(both), logits(all_but(edges)))
    assert close(logits(Mask(edges, 0.0, 1.0, channels=(some[:, :0],) * 3)), logits(everything()))
    # of one edge some channels, and the others whole
    mixed = Mask(edges, 0.0, 1.0, channels=(some, None, None))
    twice = np.concatenate([edges[:1], edges])
    assert close(logits(mixed), logits(Mask(twice, 0.0, 1.0, channels=(some[:, :4], some[:, 4:], None, None))))
    assert not close(logits(mixed), part, 1e-6) and not close(logits(mixed), logits(all_but(edges)), 1e-6)
