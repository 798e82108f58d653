"""Bounds of long prompts' moved writes: whatever they leave out, the best attributions are those of all."""

import pytest
import torch

from conftest import prompts_of, tiny_model
from keyhole.tracing import bounds, sides, writers
from keyhole.tracing.candidates import Candidates, Places, Sites, ig_vectors
from keyhole.tracing.upstream import Writes, reads_of
from tiny import Sizes

N = 40
SIZES = Sizes(layers=4, heads=4, kv_heads=2, d_head=8, seed=3)
VARIANTS = [
    "llama",
    "mistral",
    "llama-yarn",
    "qwen3",
    "glm4",
    "gpt_oss",
]  # glm4: adjacent pairs turn, half of a head passes


@pytest.fixture(params=VARIANTS)
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Firings of two heads of the last layer, at two tokens each."""
    monkeypatch.setattr(writers, "_KEPT_FLOATS", 0)
    monkeypatch.setattr(bounds, "_NEAR", 3)
    monkeypatch.setattr(bounds, "_AHEAD", 1)
    monkeypatch.setattr(bounds, "_FEW", 0)
    model = tiny_model(request.param, SIZES, torch.float64)
    writes = Writes([model.run(prompts_of(model, N)[0])])
    layer = model.attention_layers[-1]
    sites = Sites.of([(0, 1, N - 1, 3), (0, 1, N - 4, 20), (0, 2, N - 1, 30), (0, 2, 17, 0)], writes.device)
    record = writes.record(layer)
    w = ig_vectors(sites.scores(record), sites.visible(record), sites.src, record.rule, heads=sites.head)
    reads = reads_of(writes, layer, [(0, 1), (0, 2)], torch.unique(sites.dest))
    return Places(writes, layer, sites, w, reads, torch.tensor([0, 0, 1, 1]))


def both(places: Places, side: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Candidates, Candidates]:
    make = sides.dest_candidates if side == "dest" else sides.src_candidates
    few = make(places)
    monkeypatch.setattr(sides, "is_bounded", lambda writes, layer: False)
    return few, make(places)


@pytest.mark.parametrize("side", ["dest", "src"])
def test_the_best_are_those_of_all(side: str, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    few, every = both(places, side, monkeypatch)
    assert few.bounded is not None and every.bounded is None and few.components == every.components
    for m in (1, 4, 16, 64):
        ig, components, channels = few.top(m)
        best = every.top(m)[0]
        torch.testing.assert_close(ig, torch.where(best > 1e-12, best, ig), rtol=1e-9, atol=1e-12)
        rows = every.rows(components, channels)
        torch.testing.assert_close(few.rows(components, channels), rows, rtol=1e-9, atol=1e-12)
        attributed = torch.einsum("fpk,fk->fp", rows, places.w)
        torch.testing.assert_close(ig, torch.where(ig > 1e-12, attributed, ig), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("side", ["dest", "src"])
def test_bounds_are_bounds_and_leave_something_out(side: str, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    few, _ = both(places, side, monkeypatch)
    bounded = few.bounded
    assert bounded is not None
    left_out = 0
    for firing in range(len(places.w)):
        bound = bounded.mass[firing][:, None] * (bounded.size[bounded.pair[firing]] @ bounded.reach[firing].T)
        exact = bounded.exact(firing, torch.arange(bounded.n))
        assert (exact.abs() <= bound * (1 + 1e-9) + 1e-12).all()
        torch.testing.assert_close(exact, bounded.every(firing), rtol=1e-9, atol=1e-12)
        nothing = exact.new_tensor(1e-12)
        chosen, values = bounded.best(firing, 4, nothing, exact.new_zeros(0, exact.shape[1]))
        torch.testing.assert_close(values, exact[chosen])
        left_out += bounded.n - len(chosen)
    assert left_out > bounded.n  # of four firings


def test_all_are_computed_where_bounds_leave_too_many(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_FEW", 10_000)
    few, every = both(places, "src", monkeypatch)
    torch.testing.assert_close(few.top(16)[0], every.top(16)[0], rtol=1e-9, atol=1e-12)
