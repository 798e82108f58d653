"""ACC++ as the methods page says it: plain loops over candidates in float64, slow, sharing nothing with the library's.

Only the captured record of a run and its folded weights are read (`keyhole.models`); the split into writers, the
channels, attribution, search, seeds and recursion are all written out again here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole import Run
from keyhole.circuits.records import Writer

Array = np.ndarray
INTERVALS = 64


@dataclass(frozen=True)
class Write:
    """One writer at all tokens; a head has one for each token b that it reads."""

    kind: str
    layer: int
    head: int | None
    b: int | None
    at: Array  # [token, d_model], zero where nothing is written

    def writer(self, token: int) -> Writer:
        return Writer(self.kind, self.layer, self.head, token, token if self.b is None else self.b)  # type: ignore


@dataclass(frozen=True)
class Candidate:
    writer: Writer
    channel: int
    row: Array  # what it adds to the scaled score of each key


@dataclass(frozen=True)
class Removal:
    candidate: Candidate
    ig: float
    after: float


@dataclass(frozen=True)
class Signal:
    channels: tuple[int, ...]
    weight: float
    ig: float
    alone: float


@dataclass(frozen=True)
class Side:
    removed: list[Removal]
    signals: dict[Writer, Signal]
    after: float


@dataclass(frozen=True)
class Firing:
    attention: float
    tau: float
    visible: int
    sides: dict[str, Side]  # empty: not searched


@dataclass(frozen=True)
class Seed:
    writer: Writer
    weight: float
    alone: float


Join = tuple[Writer, Writer | None, str]  # from, to (None: the target), side


def numbers(tensor: Any) -> Array:
    return tensor.detach().double().cpu().numpy()


def trapezoid() -> Iterator[tuple[float, float]]:
    """(alpha, its share of the integral) for 64 intervals of [0, 1]."""
    for i in range(INTERVALS + 1):
        yield i / INTERVALS, (0.5 if i in (0, INTERVALS) else 1.0) / INTERVALS


def capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def slope(x: Array, cap: float | None) -> Array:
    """The derivative of `capped`."""
    return np.ones_like(x) if cap is None else 1.0 - np.tanh(x / cap) ** 2


def log_softmax(x: Array) -> Array:
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


class Oracle:
    def __init__(self, run: Run) -> None:
        self.run, self.n = run, len(run)
        self._patterns: dict[tuple[int, int], Array] = {}
        self._writes: dict[int, list[Write]] = {}
        self._channels: dict[tuple[int, int], tuple[Array, Array]] = {}
        self._firings: dict[tuple[Any, ...], Firing] = {}

    # -- attention ---------------------------------------------------------------------------------------------

    def scores(self, layer: int, head: int, dest: int) -> Array:
        """Captured, scaled, uncapped scores against every key."""
        record = self.run.attention_run(layer)
        q, k = numbers(record.q[head, dest]), numbers(record.k[self.run.model.folded(layer).kv(head)])
        return np.array([record.rule.scaling * (q @ k[t]) for t in range(self.n)])

    def visible(self, layer: int, dest: int) -> range:
        return range(int(self.run.attention_run(layer).first[dest]), dest + 1)

    def weights(self, layer: int, head: int, dest: int, scores: Array) -> Array:
        """Attention weights of a row of scores: cap, then ALiBi, then softmax over the visible keys and the sink."""
        rule = self.run.attention_run(layer).rule
        logits = np.full(self.n, -np.inf)
        for t in self.visible(layer, dest):
            bias = 0.0 if rule.key_bias is None else float(rule.key_bias[head, t])
            logits[t] = capped(scores[t], rule.softcap) + bias
        sink = -np.inf if rule.sinks is None else float(rule.sinks[head])
        top = max(logits.max(), sink)
        return np.exp(logits - top) / (np.exp(logits - top).sum() + np.exp(sink - top))

    def pattern(self, layer: int, head: int) -> Array:
        """A[dest, src] of one head."""
        if (layer, head) not in self._patterns:
            rows = [self.weights(layer, head, d, self.scores(layer, head, d)) for d in range(self.n)]
            self._patterns[layer, head] = np.array(rows)
        return self._patterns[layer, head]

    # -- writers (page, 1.2) -----------------------------------------------------------------------------------

    def writes(self, layer: int) -> list[Write]:
        """Everything written below a layer; `layer` = number of layers: below the final norm."""
        found = [Write("embedding", 0, None, None, numbers(self.run.layers[0].resid))]
        for below in range(layer):
            if below not in self._writes:
                self._writes[below] = list(self._written_by(below))
            found += self._writes[below]
        return found

    def _written_by(self, layer: int) -> Iterator[Write]:
        record = self.run.layers[layer]
        if record.attention is not None:
            yield from self._written_by_attention(layer)
        if record.mixer is not None:
            yield Write("mixer", layer, None, None, numbers(record.mixer))
        yield Write("mlp", layer, None, None, numbers(record.mlp))

    def _written_by_attention(self, layer: int) -> Iterator[Write]:
        record, w = self.run.attention_run(layer), self.run.model.folded(layer)
        m, v, b_V = numbers(record.out_scale), numbers(record.v), numbers(w.b_V)
        bias = np.array([numbers(w.b_O) / m[t] for t in range(self.n)])
        for head in range(len(record.q)):
            A, W_O, kv = self.pattern(layer, head), numbers(w.W_O[head]), w.kv(head)
            for b in range(self.n):
                at = np.zeros_like(bias)
                for t in range(b, self.n):
                    at[t] = A[t, b] * ((v[kv, b] - b_V[kv]) @ W_O) / m[t]
                yield Write("head", layer, head, b, at)
            for t in range(self.n):
                bias[t] += A[t].sum() * (b_V[kv] @ W_O) / m[t]
        yield Write("bias", layer, None, None, bias)

    # -- channels and candidates (page, 1.4 and 4) -------------------------------------------------------------

    def channels(self, layer: int, head: int) -> tuple[Array, Array]:
        """(G_d, G_s) from the SVD of the d_model x d_model matrix Omega; channels without weight are zero."""
        if (layer, head) not in self._channels:
            w = self.run.model.folded(layer)
            W_Q, W_K = numbers(w.W_Q[head]), numbers(w.W_K[w.kv(head)])
            r = W_Q.shape[1]
            U, sigma, Vh = np.linalg.svd(W_Q @ W_K.T)
            assert np.allclose(U[:, :r] * sigma[:r] @ Vh[:r], W_Q @ W_K.T, atol=1e-9 * sigma[0])
            G_d, G_s = np.zeros((r, r)), np.zeros((r, r))
            for k in range(r):
                if sigma[k] > sigma[0] * r * np.finfo(str(w.W_Q.dtype).removeprefix("torch.")).eps:
                    G_d[:, k] = W_K.T @ Vh[k]
                    G_s[k] = U[:, k] @ W_Q / sigma[k]
            self._channels[layer, head] = G_d, G_s
        return self._channels[layer, head]

    def rotation(self, layer: int, t: int, r: int) -> Array:
        """R_t as a matrix."""
        R, rotary = np.eye(r), self.run.attention_run(layer).rotary
        if rotary is not None:
            cos, sin = numbers(rotary.cos[t]), numbers(rotary.sin[t])
            for f in range(len(cos)):
                i, j = (f, f + len(cos)) if rotary.pairing == "halves" else (2 * f, 2 * f + 1)
                R[i, i], R[i, j] = cos[f], -sin[f]
                R[j, j], R[j, i] = cos[f], sin[f]
        return R

    def reads(self, side: str, layer: int, head: int, t: int) -> tuple[Callable[[Array], Array], Array]:
        """How the head reads a write at t (into its rotated query or key), and its own rotated offset there."""
        record, w = self.run.attention_run(layer), self.run.model.folded(layer)
        if side == "dest":
            W, b, c, s = w.W_Q[head], w.b_Q[head], w.c_Q[head], record.q_scale[head, t]
        else:
            kv = w.kv(head)
            W, b, c, s = w.W_K[kv], w.b_K[kv], w.c_K[kv], record.k_scale[kv, t]
        W, b, c, s, n = numbers(W), numbers(b), numbers(c), float(s), float(record.norm_scale[t])
        R = self.rotation(layer, t, W.shape[1])
        return lambda written: R @ (W.T @ written * s / n), R @ (s * b + c)

    def dest_candidates(self, layer: int, head: int, dest: int) -> list[Candidate]:
        """row_t = scaling a_k B_tk: the writer's share of the query, against the full captured keys."""
        record, (G_d, G_s) = self.run.attention_run(layer), self.channels(layer, head)
        keys = numbers(record.k[self.run.model.folded(layer).kv(head)])
        B = np.array([G_s @ keys[t] for t in range(self.n)])
        read, offset = self.reads("dest", layer, head, dest)
        parts = [(write.writer(dest), read(write.at[dest])) for write in self.writes(layer)]
        parts.append((Writer("offset", layer, head, dest, dest), offset))
        found = []
        for writer, part in parts:
            a = part @ G_d
            found += [Candidate(writer, k, record.rule.scaling * a[k] * B[:, k]) for k in range(len(a))]
        return found

    def src_candidates(self, layer: int, head: int, dest: int, src: int, keys: str) -> list[Candidate]:
        """row_t = scaling a_k B_tk: the full captured query, against the writer's share of every key (or of src's)."""
        record, (G_d, G_s) = self.run.attention_run(layer), self.channels(layer, head)
        a = numbers(record.q[head, dest]) @ G_d
        below = self.writes(layer)
        B = np.zeros((len(below) + 1, self.n, len(a)))  # the last one is the offset
        for t in range(self.n) if keys == "all" else [src]:
            read, offset = self.reads("src", layer, head, t)
            for i, write in enumerate(below):
                B[i, t] = G_s @ read(write.at[t])
            B[-1, t] = G_s @ offset
        writers = [write.writer(src) for write in below] + [Writer("offset", layer, head, src, src)]
        found = []
        for writer, shares in zip(writers, B, strict=True):
            found += [Candidate(writer, k, record.rule.scaling * a[k] * shares[:, k]) for k in range(len(a))]
        return found

    # -- one firing (page, 4) ----------------------------------------------------------------------------------

    def path(self, layer: int, head: int, dest: int, src: int) -> Array:
        """w = integral of p_s (e_s - p) c'(alpha S): the gradient of the weight along the path from no scores."""
        scores, cap = self.scores(layer, head, dest), self.run.attention_run(layer).rule.softcap
        w = np.zeros(self.n)
        for alpha, share in trapezoid():
            p = self.weights(layer, head, dest, alpha * scores)
            for t in range(self.n):
                w[t] += share * p[src] * (float(t == src) - p[t]) * slope(alpha * scores[t], cap)
        return w

    def tau(self, layer: int, dest: int, tau: Any = "dynamic") -> float:
        return min(1.0, 2.5 / len(self.visible(layer, dest))) if tau == "dynamic" else float(tau)

    def explain(self, layer: int, head: int, dest: int, src: int, tau: Any = "dynamic", keys: str = "all") -> Firing:
        """Why one weight is above tau; kept, as circuits that share a firing ask again."""
        asked = layer, head, dest, src, tau, keys
        if asked not in self._firings:
            self._firings[asked] = self._explained(*asked)
        return self._firings[asked]

    def _explained(self, layer: int, head: int, dest: int, src: int, tau: Any, keys: str) -> Firing:
        attention, limit = float(self.pattern(layer, head)[dest, src]), self.tau(layer, dest, tau)
        sides = {}
        if attention >= limit:
            for_dest = self.dest_candidates(layer, head, dest)
            for_src = self.src_candidates(layer, head, dest, src, keys)
            sides["dest"] = self.search(for_dest, layer, head, dest, src, limit)
            sides["src"] = self.search(for_src, layer, head, dest, src, limit)
        return Firing(attention, limit, len(self.visible(layer, dest)), sides)

    def search(self, found: list[Candidate], layer: int, head: int, dest: int, src: int, tau: float) -> Side:
        """Remove one candidate after the other, the largest attribution first, until the weight is below tau."""
        w, scores = self.path(layer, head, dest, src), self.scores(layer, head, dest)
        ranked = sorted(((float(c.row @ w), i) for i, c in enumerate(found)), reverse=True)
        after, removed = float(self.weights(layer, head, dest, scores)[src]), []
        for ig, i in ranked:
            if after < tau or ig <= 0:
                break
            scores = scores - found[i].row
            after = float(self.weights(layer, head, dest, scores)[src])
            removed.append(Removal(found[i], ig, after))
        return Side(removed, self.signals(removed, layer, head, dest, src), after)

    def signals(self, removed: list[Removal], layer: int, head: int, dest: int, src: int) -> dict[Writer, Signal]:
        """What was removed, by writer; one that moved from a token after the one it wrote to is no signal."""
        clean = self.scores(layer, head, dest)
        start = before = float(self.weights(layer, head, dest, clean)[src])
        drops: list[tuple[Removal, float]] = []
        for r in removed:
            drops.append((r, before - r.after))
            before = r.after
        signals = {}
        for writer in dict.fromkeys(r.candidate.writer for r in removed):
            own = [(r, drop) for r, drop in drops if r.candidate.writer == writer]
            without = clean - sum(r.candidate.row for r, _ in own)
            alone = start - float(self.weights(layer, head, dest, without)[src])
            if writer.src <= writer.dest:
                channels = tuple(r.candidate.channel for r, _ in own)
                signals[writer] = Signal(channels, sum(d for _, d in own), sum(r.ig for r, _ in own), alone)
        return signals

    # -- seeds (page, 5.1) -------------------------------------------------------------------------------------

    def logit_shares(self, end: int) -> tuple[list[Writer], Array]:
        """Every writer's share of the (uncapped, bias-free) logits at `end`: [writer, vocab]."""
        W_U, n = numbers(self.run.model.head_out().W_U), float(self.run.final_scale[end])
        below = self.writes(len(self.run.layers))
        reached = [write for write in below if write.b is None or write.b <= end]
        return [write.writer(end) for write in reached], np.array([write.at[end] / n @ W_U for write in reached])

    def prob_seeds(self, targets: Sequence[int], seed_tau: float, end: int) -> list[Seed]:
        """The writers that carry J(z) = sum q log softmax(cap(z + b_U)), q the clean probabilities of the targets."""
        out = self.run.model.head_out()
        b_U, cap = numbers(out.b_U), out.softcap
        z = numbers(self.run.final_resid[end]) / float(self.run.final_scale[end]) @ numbers(out.W_U)
        q = np.zeros_like(z)
        q[list(targets)] = np.exp(log_softmax(capped(z + b_U, cap)))[list(targets)]
        q /= q.sum()

        def J(z: Array) -> float:
            return float(q @ log_softmax(capped(z + b_U, cap)))

        writers, shares = self.logit_shares(end)
        gradient = np.zeros_like(z)
        for alpha, share in trapezoid():
            p = np.exp(log_softmax(capped(alpha * z + b_U, cap)))
            gradient += share * (q - p) * slope(alpha * z + b_U, cap)
        seeds, left, total = [], z.copy(), J(z) - J(np.zeros_like(z))
        for A, i in sorted(((float(row @ gradient), i) for i, row in enumerate(shares)), reverse=True):
            if A <= 0 or total <= 0 or J(z) - J(left) >= seed_tau * total:
                break
            left = left - shares[i]
            seeds.append(Seed(writers[i], A, J(z) - J(z - shares[i])))
        return seeds

    def linear_seeds(self, targets: Sequence[int], against: Sequence[int], end: int) -> list[Seed]:
        """The writers of a difference of (capped) logits; without `against`, from the mean over the vocabulary."""
        out = self.run.model.head_out()
        b_U, cap = numbers(out.b_U), out.softcap
        z = numbers(self.run.final_resid[end]) / float(self.run.final_scale[end]) @ numbers(out.W_U)
        direction = np.zeros_like(z)
        for i in targets:
            direction[i] += 1.0 / len(targets)
        for i in against or range(len(z)):
            direction[i] -= 1.0 / (len(against) or len(z))

        def difference(z: Array) -> float:
            return float(direction @ capped(z + b_U, cap))

        gradient = np.zeros_like(z)
        for alpha, share in trapezoid():
            gradient += share * direction * slope(alpha * z + b_U, cap)
        writers, shares = self.logit_shares(end)
        values = [float(row @ gradient) for row in shares]
        total, running, cutoff = sum(values), 0.0, 0.0
        if total <= 0:
            return []
        for cutoff in sorted(values, reverse=True):
            running += cutoff
            if running > total:
                break
        chosen = [i for i, value in enumerate(values) if value > 0 and value >= min(cutoff, total / 2)]
        return [Seed(writers[i], values[i], difference(z) - difference(z - shares[i])) for i in chosen]

    # -- a circuit (page, 5.2) ---------------------------------------------------------------------------------

    def trace(self, seeds: list[Seed], tau: Any = "dynamic", keys: str = "all") -> dict[Join, Signal]:
        """The signals by what they join, by recursion from the seeds; layer 0 and token 0 end it."""
        edges: dict[Join, Signal] = {}
        visited: set[Writer] = set()

        def follow(firing: Writer) -> None:
            if firing.kind != "head" or firing in visited or firing.layer == 0 or firing.dest == 0:
                return
            visited.add(firing)
            assert firing.head is not None
            found = self.explain(firing.layer, firing.head, firing.dest, firing.src, tau, keys)
            for side, result in found.sides.items():
                for writer, signal in result.signals.items():
                    edges[writer, firing, side] = signal
                    follow(writer)

        for seed in seeds:
            edges[seed.writer, None, "target"] = Signal((), seed.weight, seed.weight, seed.alone)
            follow(seed.writer)
        return edges
