"""Do 32 SVF toys trained together cost at most half of 32 trained one by one? And a thousand on an accelerator?

    python benchmarks/svf.py [--steps 400] [--alone 3]
    python benchmarks/svf.py --sweep 1000 --device cuda

One by one: a plain autograd loop with the same data and optimiser, in the same process on one thread. Every run has
the same cost per step, so a few of them are timed for fewer steps than a full training and scaled; CPU seconds are
compared, which other people's jobs disturb least. The sweep trains its configurations in full: seeds times lambda.
"""

import argparse
import math
import time

import torch

from keyhole.lab.svf import SVFSettings, generator
from keyhole.lab.svf_alignment import alignment
from keyhole.lab.svf_train import train

MODELS = 32
LAMBDAS = (1.0, 4.0, 10.0, 20.0, 40.0)


def alone(s: SVFSettings) -> tuple[torch.Tensor, ...]:
    """One model as one would write it down: the loss, autograd and torch's AdamW."""
    init, data, T = generator(s.seed, "init"), generator(s.seed, "data"), s.T
    shapes = ((s.D, s.N), (s.H, s.D), (s.H, s.D))
    W, W_Q, W_K = (torch.nn.Parameter(torch.randn(*n, generator=init) * math.sqrt(2 / sum(n))) for n in shapes)
    b = torch.nn.Parameter(torch.zeros(s.N))
    optimiser = torch.optim.AdamW([W, b, W_Q, W_K], lr=s.lr, weight_decay=s.weight_decay)
    for step in range(s.steps):
        for group in optimiser.param_groups:
            group["lr"] = s.lr * math.cos(math.pi / 2 * step / (s.steps - 1))
        f = torch.relu(1 - torch.rand(s.m, s.batch // s.m, s.N, generator=data) / s.p)
        tokens = f @ W.T
        recon = (torch.relu(tokens @ W + b) - f).square().sum(-1).mean()
        logits = torch.einsum("cd,mcd->mc", tokens[-1] @ (W_Q.T @ W_K), tokens)
        target = torch.einsum("cn,mcn->mc", f[-1] @ T, f)
        attention = -(target.softmax(0) * logits.log_softmax(0)).sum(0).mean()
        optimiser.zero_grad()
        (recon + s.lam * attention).backward()
        optimiser.step()
    return tuple(w.detach() for w in (W, b, W_Q, W_K))


def compare(steps: int, few: int) -> bool:
    torch.set_num_threads(1)
    settings = [SVFSettings.fast(steps=steps, seed=seed) for seed in range(MODELS)]
    warm = SVFSettings.fast(steps=20)
    alone(warm), train([warm])
    start = time.process_time()
    singles = [alone(s) for s in settings[:few]]
    one_by_one = (time.process_time() - start) / few * MODELS
    start = time.process_time()
    models = train(settings)
    together = time.process_time() - start
    start = time.process_time()
    train(settings[:1])
    own = time.process_time() - start
    worst = max(
        float((ours - theirs).abs().max())
        for model, single in zip(models, singles, strict=False)
        for ours, theirs in zip((model.W, model.b, model.W_Q, model.W_K), single, strict=True)
    )
    per = 1e3 / steps
    print(f"{steps} steps a run, one thread, CPU seconds; one by one: {few} runs timed, scaled to {MODELS}")
    print(f"one by one, autograd   {one_by_one:8.1f} s  {one_by_one / MODELS * per:.3f} ms per step and model")
    print(f"{MODELS} together            {together:8.1f} s  {together / MODELS * per:.3f} ms per step and model")
    print(f"one alone, ours        {own:8.1f} s  {own * per:.3f} ms per step")
    print(f"largest difference of weights {worst:.1e}  (bar: 1e-4)")
    print(f"ratio                  {together / one_by_one:8.2f}    (bar: 0.5)")
    return together <= one_by_one / 2 and worst < 1e-4


def sweep(n: int, steps: int, device: str) -> bool:
    seeds = -(-n // len(LAMBDAS))
    settings = [SVFSettings.fast(lam=lam, seed=seed, steps=steps) for lam in LAMBDAS for seed in range(seeds)][:n]
    start = time.perf_counter()
    models = train(settings, device=device)
    seconds = time.perf_counter() - start
    print("| lambda | runs | aligned (every cos > .999) | worst cos, median | lowest | gain / T, lowest |")
    print("|---|---|---|---|---|---|")
    for lam in LAMBDAS:
        found = [alignment(m) for m in models if m.settings.lam == lam]
        if found:
            cos = torch.tensor([a.by_assignment.worst for a in found])
            gain = min(float((a.by_assignment.gain / a.T).min()) for a in found)
            aligned = int((cos > 0.999).sum())
            print(f"| {lam:g} | {len(cos)} | {aligned} | {cos.median():.5f} | {cos.min():.5f} | {gain:.3f} |")
    print(f"{n} configurations, {steps} steps each, on {device}: {seconds:.1f} s    (bar on an accelerator: 300)")
    return seconds <= 300


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--alone", type=int, default=3)
    parser.add_argument("--sweep", type=int)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.sweep is not None:
        good = sweep(arguments.sweep, arguments.steps or 10_000, arguments.device)
    else:
        good = compare(arguments.steps or 400, arguments.alone)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
