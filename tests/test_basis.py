"""The singular basis, causally: bases keep scores, all channels are the whole edge, two suffice if known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import keyhole
from conftest import tiny_model
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Baseline
from keyhole.faithfulness.masked import masked
from keyhole.faithfulness.shares import MaskedQuestion, question
from keyhole.faithfulness.token_masks import Mask, everything
from keyhole.intervene.removal import Metric
from keyhole.lab import known
from keyhole.lab.basis import BasisStudy, PromptCounts, basis_study, prompt_counts, stays
from keyhole.lab.channel_parts import (
    OTHERS,
    BasisName,
    EdgeParts,
    Space,
    channel_masks,
    head_basis,
    head_spaces,
    top_edges,
)
from keyhole.lab.known_machine import Stream, tokenizer, transformer
from keyhole.models.load import load
from keyhole.tracing.answers import token_ids
from test_curves import METRIC, runs_of

NAMES: tuple[BasisName, ...] = ("singular", *OTHERS)
PLAIN = ("llama", "gpt2", "qwen2")


def asked_of(variant: str) -> MaskedQuestion:
    """A tiny model's prompt, at the mean of three."""
    runs = runs_of(variant, 3, torch.float64, 9)
    made = masked(runs)
    return question(runs[0], METRIC, Baseline("mean", "a mean", made.written().mean(1).detach()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", PLAIN)
def test_bases_keep_every_score(variant: str, name: BasisName) -> None:
    """(q G) . (k G^-T) = q . k, in every head."""
    model = tiny_model(variant)
    for layer in range(model.dims.layers):
        for head in range(model.dims.heads):
            query, key = (head_spaces(model, name, 1)(layer, head, side) for side in (True, False))
            q, k = torch.randn(2, 5, model.dims.d_head, dtype=torch.float64)
            assert torch.allclose((q @ query.into) @ (k @ key.into).T, q @ k.T, atol=1e-8)
            assert torch.allclose(k @ key.into @ key.back, k, atol=1e-8)


def test_singular_channels_are_diagonal() -> None:
    """W_Q G and W_K G^-T have columns at right angles; refactored ones have not."""
    model = tiny_model("llama", dtype=torch.float64)
    (W_Q, _, _), (W_K, _, _) = model._queries_keys(0)
    group = model.dims.heads // len(W_K)
    G = head_basis(model, 0, 1, "singular")
    for W, into in ((W_Q[1], G), (W_K[1 // group], torch.linalg.inv(G).T)):
        gram = (W @ into).T @ (W @ into)
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-9 * gram.abs().max()
    other = W_Q[1] @ head_basis(model, 0, 1, "refactored")
    assert (other.T @ other).fill_diagonal_(0).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", PLAIN)
def test_all_channels_are_the_whole_edge(variant: str, name: BasisName) -> None:
    """And none of them, whatever the basis, is the same pass too; some are another."""
    asked = asked_of(variant)
    parts = EdgeParts.of(asked, top_edges(asked, 12))
    n = asked.run.model.dims.d_head
    none, some, every = asked.logits(channel_masks(parts, name, [0, 1, n], 0))
    (whole,) = asked.logits([everything()])
    eye = torch.eye(n, dtype=torch.float64)
    (nothing,) = asked.logits([Mask(parts.edges, 1.0, 1.0, 0, (), (eye,) * 12)])
    assert torch.allclose(every, whole, atol=1e-9) and torch.allclose(none, nothing, atol=1e-7)
    assert not torch.allclose(some, whole, atol=1e-4) and not torch.allclose(none, whole, atol=1e-4)


@pytest.mark.parametrize("side", ["dest", "src"])
def test_a_withheld_edge_is_what_the_query_or_key_loses(side: str) -> None:
    """Beside the scores by hand: only one query (or key) changes, by the projector, and the norm's scale stays."""
    asked = asked_of("llama")
    made, layer, head, token = asked.masked, 2, 1, 4
    reader = next(i for i, r in enumerate(made.wiring.readers) if (r.layer, r.head, r.side) == (layer, head, side))
    edges = np.array([[3, reader, token]])
    P = torch.randn(asked.run.model.dims.d_head, asked.run.model.dims.d_head, dtype=torch.float64)
    block = made.blocks[layer]
    part = block.query if side == "dest" else block.key
    x = asked.run.layers[layer].resid.double()
    change = made.written()[3, 0, token] - asked.baseline.writes[3, token]
    lost = torch.zeros(made.model.dims.heads, 1, len(x), len(P), dtype=torch.float64)
    lost[head, 0, token] = change @ part.W[head] @ P
    same = x.expand(made.model.dims.heads, 1, *x.shape)
    assert part.norm is not None
    plain = part.linear(same) - lost / part.norm.scale(x[None])[0, :, None]
    assert torch.allclose(part.linear(same, lost), plain, atol=1e-9)
    both = (lost, None) if side == "dest" else (None, lost)
    moved, _ = block.attend(same, same, same, None, both)
    with torch.no_grad():
        _, stream = made.read([Mask(edges, 1.0, 1.0, 0, (), (P,))])
    heads = [(writer.kind, writer.layer, writer.head) for writer in made.wiring.writers]
    written = stream.written[heads.index(("head", layer, head)), 0]
    assert torch.allclose(written, moved[head, 0], atol=2e-6)  # the recorded stream is rounded
    assert not torch.allclose(written, made.written()[heads.index(("head", layer, head)), 0], atol=1e-2)


def test_sizes_are_changes_of_scores() -> None:
    """Channels of edges beside the definition: rows of scores changed by each alone, spread under their softmax."""
    asked = asked_of("llama")
    parts = EdgeParts.of(asked, top_edges(asked, 12))
    assert len(set(parts.query)) == 2
    for i, (_, reader, token) in enumerate(parts.edges.tolist()):
        place = asked.masked.wiring.readers[reader]
        assert place.layer is not None and place.head is not None
        block, run = asked.masked.blocks[place.layer], asked.run.attention_run(place.layer)
        assert block.rotary is not None
        q, k = run.q[place.head].double(), run.k[run.kv(place.head)].double()
        A = run.weights([place.head], list(range(len(q))))[0].double()
        basis = torch.linalg.qr(torch.randn(q.shape[1], q.shape[1], dtype=torch.float64))[0]
        for channel, size in enumerate(parts.sizes(i, Space(basis, basis.T)).tolist()):
            added = torch.zeros_like(q)
            added[token] = parts.added[i] @ basis[:, [channel]] @ basis[:, [channel]].T
            turned = block.rotary.rotate(added)
            scores = (turned @ k.T if parts.query[i] else q @ turned.T) * block.rule.scaling
            scores = scores - (A * scores).sum(1, keepdim=True)  # where A is 0, a token is not seen
            assert size == pytest.approx(float((A * scores.abs()).sum()), rel=1e-4, abs=1e-7)


def test_the_known_machine_needs_a_channel_for_each_of_two_words() -> None:
    """A channel (and a coordinate) is a word: this one, and the one that it stands for. Turned, these are many."""
    soft = load((transformer(Stream.make()).double(), tokenizer()))  # float32 rounds the second size to 0
    machine = known.Known.of(soft, known.build().prompt)
    run = machine.model.run(machine.prompt)
    other = machine.model.run("Berlin : new sun , old cat , big dog . new")
    (answer,), (against,) = (token_ids(run, word, len(run) - 1) for word in (machine.answer, machine.against))
    resting = Baseline("counterfactual", "another prompt", masked([other]).written()[:, 0].detach())
    counts = prompt_counts(question(run, Metric(len(run) - 1, (answer,), (against,)), resting), edges=8, draws=2)
    assert counts is not None and counts.answer - counts.nothing > 1
    assert counts.needed["singular"] == counts.needed["raw"] == (2,)
    assert min(*counts.needed["refactored"], *counts.needed["rotated"]) > 4


def test_stays_counts_from_the_end() -> None:
    assert stays([1, 2, 4, 8], [1.0, 0.2, 0.95, 1.0]) == 4
    assert stays([1, 2, 4, 8], [1.0, 1.0, 1.2, 1.0]) == 8
    assert stays([1, 2, 4, 8], [0.91, 1.09, 1.0, 1.0]) == 1
    assert stays([1, 2], [1.0, math.nan]) == 2


def test_the_ratio_is_a_geometric_mean_over_prompts() -> None:
    def row(singular: int, other: tuple[int, ...]) -> PromptCounts:
        needed = {"singular": (singular,), "refactored": other, "raw": (singular,), "rotated": (1,)}
        return PromptCounts("", 2.0, 0.0, needed, {})  # type: ignore[arg-type]

    study = BasisStudy("m", "ioi", 16, 32, (1, 16), 2, (row(2, (4, 4)), row(2, (8, 32))) * 3, 0, 0, 0.0)
    assert study.ratio("refactored")[0] == pytest.approx(math.sqrt(2 * 8))
    assert study.ratio("raw") == (1.0, 1.0, 1.0)
    assert "fewer channels than refactored." in study.verdict and "more channels than rotated" in study.verdict
    assert "No difference is shown from raw" in study.verdict
    assert replace(study, prompts=study.prompts[:5]).verdict.startswith("No verdict: 5 prompts")


def test_the_organism_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="keyhole"):
        study = basis_study(keyhole.load(), prompts=2, edges=8, draws=1)
    assert [r.getMessage() for r in caplog.records if "for 1 more prompts" in r.getMessage()]
    assert len(study.prompts) == 2 and study.d_head == 16
    for row in study.prompts:
        assert row.answer - row.nothing >= 1.0
        assert all(curve[-1] == pytest.approx(1.0, abs=1e-4) for drawn in row.curves.values() for curve in drawn)
    assert study.record()["bases"]["raw"]["ratio"][0] > 0


def test_requests_that_are_refused() -> None:
    with pytest.raises(KeyholeError, match="at least one"):
        basis_study(keyhole.load(), prompts=0)
