"""Are our GIM gradients those of the authors' package, and as fast?

    pip install --no-deps --target /tmp/gim gim-explain      # MIT; a folder of its own, for its patches of torch
    PYTHONPATH=src:/tmp/gim python benchmarks/gim_gradients.py .cache/smollm2.gguf

The package (0.1.4) differs from the paper's definition on models of transformers:

- RMSNorms of transformers are classes of their own, which it does not recognise: they are not frozen;
- its factors on query, key and value are set in torch's fused attention, which calls no softmax: the temperature has no
  effect there (transformers' eager attention passes a dtype to softmax, which its replacement does not take);
- gate and up-projection keep their whole gradients.

So it is run as it is, and on the same model with torch's RMSNorm and with attention written out, where its switches do
work; ours with the same changes (gate and up at 1), and in full. The number compared is the attribution to each token:
(embedding - embedding of a baseline token) . gradient of a logit.
"""

import sys
import time

import gim
import torch
from torch import Tensor, nn

import keyhole
from keyhole.faithfulness.masked import masked
from keyhole.faithfulness.shares import reader_slopes
from keyhole.faithfulness.token_masks import everything
from keyhole.intervene.removal import Metric
from keyhole.studies.curves.attribution import Backward, with_backward

PROMPT = "When Mary and John went to the store, John gave a drink to"
FEATURES = {
    "as shipped: q, k, v alone": Backward(frozen_norms=False, temperature=1.0, gate=1.0, up=1.0),
    "norms, softmax, q, k, v": Backward(gate=1.0, up=1.0),
    "all four rules": Backward(),
}


def written_out(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: object) -> Tensor:
    """Attention by a softmax that can be replaced."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (options.get("scale") or q.shape[-1] ** -0.5)
    if attn_mask is None:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    else:
        scores = scores.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return nn.functional.softmax(scores, dim=-1) @ v


def with_torch_norms(hf: nn.Module) -> None:
    """Exchange a Llama's norms for torch's, of the same weights."""
    for parent in list(hf.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)


def ours(model: keyhole.Model, ids: list[int], target: int, other: int, backward: Backward) -> tuple[Tensor, float]:
    """Attribution to tokens: the embedding's gradient is the sum over all readers."""
    start = time.perf_counter()  # with the run that is taken apart
    made = masked([model.run(ids, bos=False)], check=False)
    _, slopes = reader_slopes(with_backward(made, backward), [Logit(len(ids) - 1, (target,))], [everything(1.0)])
    gradient = sum(slope.sum(0)[0] for _, slope in slopes)
    took = time.perf_counter() - start
    baseline = model.run([other] * len(ids), bos=False).layers[0].resid
    return ((made.words[0] - baseline) * gradient).sum(-1), took


class Logit(Metric):
    """A logit itself, as the package explains it."""

    def value(self, logits: Tensor) -> Tensor:
        """Of the first target."""
        return logits[self.targets[0]]


def main(source: str) -> None:
    torch.set_num_threads(1)
    model = keyhole.load(source)
    model.hf.requires_grad_(False)  # the package would take gradients of all weights, too
    run = model.run(PROMPT)
    ids, target, other = list(run.token_ids), int(run.logits[-1].argmax()), 220
    found, times = {}, {}
    for name, backward in FEATURES.items():
        found[name], times[name] = min(
            (ours(model, ids, target, other, backward) for _ in range(3)), key=lambda x: x[1]
        )

    def theirs() -> tuple[Tensor, float]:
        start = time.perf_counter()
        values = gim.explain(model.hf, torch.tensor([ids]), target_token_id=target, baseline_token_id=other)
        return values, time.perf_counter() - start

    model.hf.set_attn_implementation("sdpa")
    shipped, took_shipped = min((theirs() for _ in range(3)), key=lambda x: x[1])
    with_torch_norms(model.hf)
    original, nn.functional.scaled_dot_product_attention = nn.functional.scaled_dot_product_attention, written_out
    whole, took = min((theirs() for _ in range(3)), key=lambda x: x[1])
    nn.functional.scaled_dot_product_attention = original
    for name, theirs_, seconds in (
        ("as shipped: q, k, v alone", shipped, took_shipped),
        ("norms, softmax, q, k, v", whole, took),
        ("all four rules", whole, took),
    ):
        error = float((found[name] - theirs_).abs().max() / theirs_.abs().max())
        ratio = times[name] / seconds
        print(f"ours with {name:<26} difference {error:.1e} of the largest, time {ratio:.2f} of the package's")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".cache/smollm2.gguf")
