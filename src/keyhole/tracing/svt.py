"""Which heads made a head look here? Singular vector tracing, the 2024 method, as a circuit to compare with ACC++.

A firing of a head at (i = dest, j = src) uses the channels S of its homogeneous Omega (`slice_sets`). An upstream head
whose whole output at a token is o, all its sources together, contributes there (equation 8 of the paper)

    c_dest = sum_S sqrt(sigma_k) u_k . o_i / n_i        c_src = sum_S sqrt(sigma_k) v_k . o_j / n_j

with (u_k, v_k) turned so that u_k . x~_i > 0. Heads that make up 70 % of all contributions through a token become
edges, and each is followed wherever it fires from that token. The homogeneous slot of an output is 0, since no head
writes it. (The authors' code puts a 1 there, which adds the same constant to every head.)

In head space u_k . o = (q_o G_d)_k / sigma_k and v_k . o = (G_s k_o)_k, with q_o and k_o what the firing head reads of
o. Our extension to RoPE models, which the paper does not treat: q_o and k_o are turned at their token, as in ACC++.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from keyhole.brief import Head, brief
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Place, SideName, Signal, Svt, Writer
from keyhole.errors import KeyholeError, NothingToTraceError
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress, silent
from keyhole.qk.channels import check_head
from keyhole.qk.controls import slice_sets
from keyhole.qk.omega import omega
from keyhole.settings.fields import old_keyword
from keyhole.settings.tracing import ChannelChoice, Start, SvtSettings
from keyhole.tracing.answers import Likeliest, Target, Tokens, choose_targets, token_ids
from keyhole.tracing.assemble import Growing, build_circuit, checked, model_facts
from keyhole.tracing.exactness import check_runs
from keyhole.tracing.firing import Firing, Side
from keyhole.tracing.seeds import Seed
from keyhole.tracing.settings import AnswerMetric, Settings, find_seeds
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run

Outputs = Callable[[int], Tensor]  # token -> what every head below a layer wrote there
Follows = Callable[[int, int, int], tuple[int, ...]]  # layer, head, dest -> the sources it fires on


@dataclass(frozen=True)
class Contributions:
    """What every head below a firing adds to it through its two tokens."""

    __repr__ = brief

    channels: tuple[int, ...]  # S, strongest term first
    layers: tuple[int, ...]  # the attention layers below, one per row
    at_dest: Float[Tensor, "layers heads"]
    at_src: Float[Tensor, "layers heads"]


@old_keyword("seeds", "metric")
def trace_svt(
    run: "Run",
    target: Target = None,
    *,
    against: Tokens | None = None,
    settings: SvtSettings | None = None,
    metric: AnswerMetric | None = None,
    end: int | str = -1,
    progress: Progress = silent,
) -> Circuit:
    """Which circuit of heads is behind an answer, by singular vector tracing?

    A firing has weight >= `settings.threshold`, score >= 0, and a source that is not the first token. With
    `settings.start` the circuit begins with chosen firings, as in the paper: their edges into the target carry their
    attention weight, and a target is only recorded. Without it the answer is read as `trace` reads it, by its logit
    unless `metric` says otherwise.

    An edge carries the contribution of a whole head, but a node names one source: the head's firing from the written
    token (each of them, if a low threshold allows several) or, if it does not fire, its most attended source: a leaf.

    Args:
        run: The run of the prompt.
        target: The answer, as `Run.trace` takes it. Default: the likeliest next token.
        against: The other answer: the lead of `target` over it is traced.
        settings: Thresholds, and with `start` the firings to begin with: an `SvtSettings`.
        metric: How the answer's score is read: "linear" (its logit; the default) or "prob". Refused with `start`.
        end: The token after which the answer is predicted. Default: the last.
        progress: Called with the number of layers done and their total.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> trace_svt(run, "Mary", against="John").parameters.method
    'svt'
    """
    run._require_fresh()
    rule, at = settings or SvtSettings(), run.position(end, "end")
    rule.require_no_metric(metric)
    answer = Likeliest(1) if target is None and rule.start is None else target
    with exact_matmul():
        ids = [] if answer is None else choose_targets(run, answer, at)
        likeliest = answer if isinstance(answer, Likeliest) else None
        chosen = Settings(tuple(ids), tuple(token_ids(run, against, at)), at, likeliest, metric or "linear")
        places = places_of(run, rule, at)
        growing = _given(run, chosen, places, rule) if places else _seeded(run, chosen)
        _grow_all(growing, rule, progress)
        (check,), facts = check_runs(growing.writes, logits_at=[[at]]), model_facts(run.model)
        return build_circuit(growing, _parameters(run, chosen, rule, places), checked(check, run), facts)


def contributions(
    run: "Run", head: Head, dest: int | str, src: int | str, *, channels: ChannelChoice = "singular"
) -> Contributions:
    """How much does each upstream head contribute to this score, through dest and through src?

    Args:
        run: The run of the prompt.
        head: Layer and head, such as (3, 6).
        dest: The attending token: a position or the text of one token.
        src: The attended token, given likewise.
        channels: "singular": the channels that make up the score, as in the paper. "all": every channel.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> contributions(run, (3, 6), -1, "Mary").layers
    (0, 1, 2)
    """
    run._require_fresh()
    rule, writes = SvtSettings(channels=channels, start=[(*head, dest, src)]), Writes([run])
    (place,) = places_of(run, rule, len(run) - 1)
    with exact_matmul():
        return _contributions(writes, place, _outputs(writes, place[0]), rule)


def significant(contributions: Float[Tensor, "layers heads"], share: float = 0.7) -> Bool[Tensor, "layers heads"]:
    """Which heads matter? The fewest whose sum exceeds a share of the total, and ties; none if that is not positive.

    >>> significant(torch.tensor([[4.0, 3.0, 3.0], [1.0, -1.0, 0.0]])).tolist()
    [[True, True, True], [False, False, False]]
    """
    ordered = contributions.double().flatten().sort(descending=True).values
    running = ordered.cumsum(0)
    if len(running) == 0 or running[-1] <= 0:
        return torch.zeros_like(contributions, dtype=torch.bool)
    cutoff = ordered[(running > share * running[-1]).int().argmax()]
    return contributions.double() >= cutoff


def head_outputs(writes: Writes, n_layers: int, token: int) -> Float[Tensor, "layers heads d_model"]:
    """What did every head of the first attention layers write at a token? Sum over b of A_tb (v_b - b_V) W_O / m_t."""
    only, at = torch.zeros(1, dtype=torch.long), torch.tensor([token])
    z = torch.einsum("lhb,lhbr->lhr", writes.patterns.rows(n_layers, only, at)[0], writes.values[0, :n_layers])
    written = [z[i, :, None] @ writes.folded(writes.attention_layers[i]).W_O for i in range(n_layers)]
    return torch.stack(written)[:, :, 0] / writes.out_scale[0, :n_layers, token, None, None]


def places_of(run: "Run", rule: SvtSettings, end: int) -> tuple[Place, ...]:
    """The firings that tracing begins with, in a run whose answer is predicted at `end`; none without a start."""
    return tuple(_place(run, each, end) for each in rule.start or ())


def _place(run: "Run", start: Start, end: int) -> Place:
    """A start in a run; of a head alone, what it attends to most from `end`."""
    layer, head = check_head(run, start[:2])
    if len(start) == 2:
        row = _row(run, layer, head, end).clone()
        row[0] = -1.0  # attention rests on the first token when there is nothing to move
        src = int(row.argmax())
        if src == 0 or src > end:
            raise KeyholeError(f"head {layer}.{head} sees nothing but the first token from token {end}: give its dest.")
        return layer, head, end, src
    dest, src = run.position(start[2], "dest"), run.position(start[3], "src")
    first = int(run.attention_run(layer).first[dest])
    if not first <= src <= dest:
        raise KeyholeError(f"src {src} is not visible from dest {dest}, which sees tokens {first} to {dest}.")
    return layer, head, dest, src


def _seeded(run: "Run", settings: Settings) -> Growing:
    writes = Writes([run])
    return Growing(writes, 0, settings, find_seeds(writes, settings))


def _given(run: "Run", settings: Settings, places: tuple[Place, ...], rule: SvtSettings) -> Growing:
    """A circuit that begins with chosen firings; those that do not fire are leaves, but one must."""
    weights = {place: float(_row(run, *place[:3])[place[3]]) for place in places}
    if not any(src in _sources(run, layer, head, dest, rule) for layer, head, dest, src in weights):
        listing = ", ".join(f"{p[0]}.{p[1]} ({p[2]} <- {p[3]}) {w:.2f}" for p, w in weights.items())
        rules = f"weight >= {rule.threshold}, score >= 0, src not the first token"
        raise NothingToTraceError(f"no start is a firing ({rules}). Given: {listing}.")
    return Growing(Writes([run]), 0, settings, [Seed(Writer("head", *place), w, w) for place, w in weights.items()])


def _grow_all(circuit: Growing, rule: SvtSettings, progress: Progress) -> None:
    """Explain layer by layer from the top: what waits at a layer is complete once all above it is done."""
    follows = cache(partial(_sources, circuit.run, rule=rule))

    def firing(writers: Iterable[Writer]) -> set[Place]:
        heads = [(w.layer, w.head, w.dest, w.src) for w in writers if w.kind == "head" and w.head is not None]
        return {place for place in heads if place[3] in follows(*place[:3])}

    waiting = firing(seed.writer for seed in circuit.seeds)
    layers = circuit.writes.attention_layers[:0:-1]
    for done, layer in enumerate(layers):
        progress(done, len(layers))
        outputs = _outputs(circuit.writes, layer)
        for place in sorted(place for place in waiting if place[0] == layer):
            progress(done, len(layers))  # again: whoever stops the work is heard inside a layer
            circuit.firings[place] = firing_there = _explain(circuit.writes, place, outputs, rule=rule, follows=follows)
            waiting |= firing(signal.writer for side in firing_there.sides for signal in side.signals)


def _explain(writes: Writes, place: Place, outputs: Outputs, *, rule: SvtSettings, follows: Follows) -> Firing:
    """The significant heads on both sides of a firing; nothing is removed, so its weight stays."""
    parts, run, (layer, head, dest, src) = _contributions(writes, place, outputs, rule), writes.runs[0], place
    weight = float(_row(run, layer, head, dest)[src])

    def side(name: SideName, values: Tensor, token: int) -> Side:
        signals = []
        for index, other in significant(values, rule.share).nonzero().tolist():
            upper, value = parts.layers[index], float(values[index, other])
            sources = follows(upper, other, token) or (int(_row(run, upper, other, token).argmax()),)
            writers = [Writer("head", upper, other, token, b) for b in sources]
            signals += [Signal(writer, name, parts.channels, value, value, value, "homogeneous") for writer in writers]
        return Side(name, tuple(sorted(signals, key=lambda signal: -signal.weight)), (), weight, False)

    sides = (side("dest", parts.at_dest, dest), side("src", parts.at_src, src))
    visible = int(run.attention_run(layer).visible([dest]).sum())
    return Firing(*place, weight, rule.threshold, visible, sides, run)


def _contributions(writes: Writes, place: Place, outputs: Outputs, rule: SvtSettings) -> Contributions:
    run, (layer, head, dest, src) = writes.runs[0], place
    record, om = run.attention_run(layer), omega(run.model, layer, "homogeneous")
    kv, n = record.kv(head), int(om.rank[head])
    a = record.q[head, dest].to(writes.dtype) @ om.G_d[head, :, :n]
    terms = a * (om.G_s[head, :n] @ record.k[kv, src].to(writes.dtype))
    used = slice_sets(terms[None])[0] if rule.channels == "singular" else torch.ones_like(terms, dtype=torch.bool)
    order = (terms if terms.sum() >= 0 else -terms).argsort(descending=True).tolist()
    weights = om.sigma[head, :n].sqrt() * torch.where(a < 0, -1.0, 1.0) * used  # the sign turns (u_k, v_k)
    at_dest = _read(run, layer, head, dest, side="dest", outputs=outputs(dest)) @ (weights / om.sigma[head, :n])
    at_src = _read(run, layer, head, src, side="src", outputs=outputs(src)) @ weights
    below = writes.attention_layers[: writes.below(layer)[0]]
    return Contributions(tuple(k for k in order if used[k]), tuple(below), at_dest, at_src)


def _read(
    run: "Run", layer: int, head: int, token: int, *, side: SideName, outputs: Float[Tensor, "layers heads d_model"]
) -> Float[Tensor, "layers heads channel"]:
    """What a head reads of each output at a token: R_t (s_t o W / n_t), in the coordinates of a (dest) or B (src)."""
    record, w, om = run.attention_run(layer), run.model.folded(layer), omega(run.model, layer, "homogeneous")
    kv, n = w.kv(head), int(om.rank[head])
    if side == "dest":
        W, scale, G = w.W_Q[head], record.q_scale[head, token], om.G_d[head, :, :n]
    else:
        W, scale, G = w.W_K[kv], record.k_scale[kv, token], om.G_s[head, :n].T
    read = outputs @ W * (scale / record.norm_scale[token])
    return (read if record.rotary is None else record.rotary.at(slice(token, token + 1)).rotate(read)) @ G


def _outputs(writes: Writes, layer: int) -> Outputs:
    """Outputs below a layer, computed once per token."""
    n_layers = writes.below(layer)[0]
    if n_layers == 0:
        raise KeyholeError(f"no attention head lies below layer {layer}: nothing upstream can be compared.")
    return cache(partial(head_outputs, writes, n_layers))


def _sources(run: "Run", layer: int, head: int, token: int, rule: SvtSettings) -> tuple[int, ...]:
    """Where does a head fire from this token?"""
    scores = run.attention_run(layer).scores([head], [token])[0, 0]
    fires = (_row(run, layer, head, token) >= rule.threshold) & (scores >= 0)
    fires[0] = False  # attention rests on the first token when there is nothing to move
    return tuple(fires.nonzero().flatten().tolist())


def _row(run: "Run", layer: int, head: int, dest: int) -> Float[Tensor, "pos"]:
    """A head's attention weights from one token."""
    return run.attention_run(layer).weights([head], [dest])[0, 0]


def _parameters(run: "Run", settings: Settings, rule: SvtSettings, places: tuple[Place, ...]) -> Svt:
    """Every choice, as it is kept; starts by their positions."""
    rotates = any(run.attention_run(layer).rotary is not None for layer in run.model.attention_layers)
    shared = settings.shared() | ({"seeds": "given"} if places else {})
    return Svt(**shared, rope="rotated" if rotates else None, **asdict(rule) | {"start": places or None})
