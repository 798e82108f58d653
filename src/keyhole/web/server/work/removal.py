"""What happens when signals go, double, or others go in their place? In the model's own pass, beside the prediction."""

from typing import Any, get_args

import torch

from keyhole.circuits.writer import Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.deltas import Cut
from keyhole.intervene.remove import AGREES, CutMode, Metric, Outcome, random_cut
from keyhole.intervene.remove import intervene as make
from keyhole.models.numbers.precision import exact_matmul
from keyhole.tracing.answers.targets import Likeliest, choose_targets
from keyhole.tracing.firings.firing import Firing, Side
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.asked import explained
from keyhole.web.server.work.prompt import predictions

TOP = 10  # answers that are told


def intervene(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Remove or boost signals of one side, or as many random channels of the same writers."""
    ran = kept.ran(body, told)
    found, _ = explained(body, ran)
    action = body.choice("action", ("remove", "boost", "random"), "remove")
    mode, draws = body.choice("mode", get_args(CutMode), "exact"), body.integer("draws", 5, least=0, most=50)
    seed, target = body.seed(), body.words("target")
    side = body.choice("side", ("dest", "src"))
    chosen, only = body.integers("signals", None), body.integers("channels", None)
    keys = body.text("keys", "all")
    body.done()
    signals = _signals(found.side(side), chosen, only)
    cut = Cut(found.layer, found.head, found.dest, found.src, signals, keys)
    generator = torch.Generator().manual_seed(seed)
    randoms = [random_cut(ran.run, cut, generator) for _ in range(max(draws, 1) if action == "random" else draws)]
    end = len(ran.run) - 1
    metric = Metric(end, tuple(choose_targets(ran.run, target or Likeliest(1), end)))
    cuts = randoms if action == "random" else [cut, *randoms]
    progress = told.progress("Running the model")
    outcomes = make(ran.run, cuts, metric, mode=mode, boost=action == "boost", keep=True, progress=progress)
    first, controls = outcomes[0], outcomes if action == "random" else outcomes[1:]
    agrees = None if mode == "global" else abs(first.after - first.predicted) <= AGREES
    return {
        "action": action,
        "mode": mode,
        "side": side,
        "signals": chosen,
        "agrees": agrees,
        **{name: getattr(first, name) for name in ("before", "after", "predicted", "metric_before", "metric_after")},
        "norm_ratio": first.norm_ratio,
        "cosine": first.cosine,
        **_shown(found, first, end),
        "controls": [{name: getattr(one, name) for name in ("after", "predicted", "metric_after")} for one in controls],
    }


def _shown(found: Firing, first: Outcome, end: int) -> dict[str, Any]:
    """The row of attention and the answers, before and after."""
    run = found.run
    assert first.row is not None and first.logits is not None
    with exact_matmul():
        row = run.layer(found.layer).weights([found.head], [found.dest])[0, 0]
    return {
        "row_before": row[: found.dest + 1].tolist(),
        "row_after": first.row[: found.dest + 1].tolist(),
        "answers_before": predictions(run, run.logits[end], TOP),
        "answers_after": predictions(run, first.logits, TOP),
    }


def _signals(side: Side, chosen: list[int] | None, only: list[int] | None) -> tuple[Signal, ...]:
    """The signals that are asked for; None: everything that the search took away on this side."""
    channels: dict[Writer, list[int]] = {}
    if chosen is None:
        for removal in side.removed:
            channels.setdefault(removal.writer, []).append(removal.channel)
    else:
        for index in chosen:
            if not 0 <= index < len(side.signals):
                raise KeyholeError(f"there is no signal {index}: this side has {len(side.signals)}, from 0.")
            channels[side.signals[index].writer] = list(side.signals[index].channels)
    if only is not None:
        channels = {who: [k for k in own if k in only] for who, own in channels.items()}
    signals = tuple(Signal(who, side.side, tuple(own)) for who, own in channels.items() if own)
    if not signals:
        raise KeyholeError("nothing is left to take away: choose a signal of this side, and channels that it uses.")
    return signals
