"""What happened in one forward pass? A frozen record of everything the methods need, linear in prompt length."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole._moved import attributes_of
from keyhole.brief import Head, brief, model_label
from keyhole.errors import KeyholeError
from keyhole.models.attention import AttentionRule, visible_mask
from keyhole.models.facts import Rotary
from keyhole.models.numbers import exact_matmul, working_dtype
from keyhole.models.tokens import Prompt, prompt_text
from keyhole.settings.fields import chosen, old_keyword
from keyhole.settings.measuring import SufficientOptions, SufficientSettings
from keyhole.settings.tracing import TraceOptions, TraceSettings, why_not_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keyhole.circuits.circuit import Circuit
    from keyhole.edits.records import Edit
    from keyhole.faithfulness.baseline import Likes
    from keyhole.models.model import Model
    from keyhole.progress import Progress
    from keyhole.qk.channels import Channels
    from keyhole.qk.firings import FiringTable
    from keyhole.qk.omega import Basis
    from keyhole.tasks.example import Example
    from keyhole.tracing.answers import Continuation, NextTokens, Target, Tokens
    from keyhole.tracing.both import Both
    from keyhole.tracing.candidates import Keys
    from keyhole.tracing.firing import Firing, Tau
    from keyhole.tracing.mlp_causes import Constants, MlpWrite
    from keyhole.tracing.writers import Split

Heads = TypeVar("Heads", int, Tensor)
_DEST_BLOCK = 256  # rows of attention held at once


@dataclass(frozen=True)
class AttentionRun:
    """One layer's attention: q and k exactly as the scores used them (after QK-norm and RoPE), and frozen scales.

    Of one run or, with an axis in front, of several side by side.
    """

    __repr__ = brief

    q: Float[Tensor, "*runs heads pos d_head"]
    k: Float[Tensor, "*runs kv_heads pos d_head"]
    v: Float[Tensor, "*runs kv_heads pos d_value"]
    first: Int[Tensor, "pos"]  # first visible key of each dest; the last one is dest itself
    rule: AttentionRule
    rotary: Rotary | None
    norm_scale: Float[Tensor, "*runs pos"]  # n_t: what the norm before attention divided by
    q_scale: Float[Tensor, "*runs heads pos"]  # s_t: what multiplies q after its projection (QK-norm, temperature)
    k_scale: Float[Tensor, "*runs kv_heads pos"]
    out_scale: Float[Tensor, "*runs pos"]  # m_t: what the norm after attention divided by

    @property
    def heads(self) -> range:
        """Every query head."""
        return range(self.q.shape[-3])

    @property
    def blocks(self) -> list[range]:
        """All destinations, as many together as keep memory linear in the prompt length."""
        n = len(self.first)
        return [range(start, min(start + _DEST_BLOCK, n)) for start in range(0, n, _DEST_BLOCK)]

    @property
    def group(self) -> int:
        """How many query heads share one KV head."""
        return self.q.shape[-3] // self.k.shape[-3]

    def kv(self, head: Heads) -> Heads:
        """The KV head that a query head reads.

        Args:
            head: Index of the query head.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.attention_run(3).kv(6)
        6
        """
        return head // self.group

    def visible(
        self, dests: Sequence[int] | None = None, keys: Int[Tensor, "key"] | None = None
    ) -> Bool[Tensor, "dest key"]:
        """A mask: which keys do these destinations see?

        Args:
            dests: Positions of the attending tokens. Default: all.
            keys: Positions of the keys. Default: all.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.attention_run(3).visible(range(2)).int().tolist()[1][:3]
        [1, 1, 0]
        """
        at = torch.arange(len(self.first)) if dests is None else torch.tensor(list(dests), dtype=torch.long)
        at = at.to(self.first.device)
        return visible_mask(self.first[at], at, len(self.first) if keys is None else keys)

    def scores(self, heads: Sequence[int], dests: Sequence[int]) -> Float[Tensor, "*runs heads dest pos"]:
        """Scaled, uncapped scores of chosen heads and destinations against every key, visible or not.

        Args:
            heads: Indices of heads in the layer.
            dests: Positions of the attending tokens.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.attention_run(3).scores([6], [14]).shape
        torch.Size([1, 1, 15])
        """
        dtype = working_dtype(self.q.dtype)
        q = self.q[..., list(heads), :, :][..., list(dests), :].to(dtype)
        k = self.k[..., [self.kv(h) for h in heads], :, :].to(dtype)
        return q @ k.mT * self.rule.scaling

    def weights(self, heads: Sequence[int], dests: Sequence[int]) -> Float[Tensor, "*runs heads dest pos"]:
        """Attention weights, recomputed from q and k.

        Args:
            heads: Indices of heads in the layer.
            dests: Positions of the attending tokens.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> round(float(run.attention_run(1).weights([6], [14])[0, 0, 2]), 3)
        0.431
        """
        return self.rule.heads(list(heads)).weights(self.scores(heads, dests), self.visible(dests))


@dataclass(frozen=True)
class LayerRun:
    """One layer: the residual stream it read and what its blocks wrote; of one run, or of several side by side."""

    __repr__ = brief

    resid: Float[Tensor, "*runs pos d_model"]
    attention: AttentionRun | None
    mixer: Float[Tensor, "*runs pos d_model"] | None  # the write of a token-mixing block that is not attention
    mlp: Float[Tensor, "*runs pos d_model"]


@dataclass(frozen=True, eq=False)
class Run:
    """One prompt through one model."""

    model: "Model" = field(repr=False)  # that made it
    token_ids: tuple[int, ...]  # the prompt
    tokens: tuple[str, ...]  # text of each token, for labels only
    bos: bool  # was a beginning-of-sequence token put first?
    layers: tuple[LayerRun, ...] = field(repr=False)  # what every layer read and wrote
    final_resid: Float[Tensor, "pos d_model"] = field(repr=False)  # what the final norm reads
    final_scale: Float[Tensor, "pos"] = field(repr=False)
    logits: Float[Tensor, "pos vocab"] = field(repr=False)  # of the next token, at every token
    _stamp: int = field(repr=False)  # of the weights that made this run
    edits: tuple[Any, ...] = field(default=(), repr=False)  # with which it was made (see `keyhole.edits`)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        said = prompt_text(self.model.tokenizer, self.token_ids)
        return f"<Run of {model_label(self.model.name)}: {len(self)} tokens, {said!r}>"

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import run_html

        return run_html(self)

    def attention_run(self, layer: int) -> AttentionRun:
        """The attention record of a layer, or an error that says why there is none.

        Args:
            layer: Index of a layer with attention.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.attention_run(3).weights([6], [len(run) - 1]).shape
        torch.Size([1, 1, 15])
        """
        if not 0 <= layer < len(self.layers):
            raise KeyholeError(f"there is no layer {layer}: the model has layers 0 to {len(self.layers) - 1}.")
        attention = self.layers[layer].attention
        if attention is None:
            raise KeyholeError(f"layer {layer} has no attention heads: it mixes tokens with another block.")
        return attention

    def _require_fresh(self) -> None:
        """Refuse to mix this run with weights that did not make it, or with edits that weights do not know of."""
        if self.edits:
            raise KeyholeError("this run was made with edits, which no trace explains: ask the run without them.")
        if self._stamp != self.model._stamp():
            raise KeyholeError("the model's weights have changed since this run was made: run the prompt again.")

    def pattern(self, layer: int) -> Float[Tensor, "heads pos pos"]:
        """All attention weights of a layer, a matrix per head.

        Of long prompts, take single rows: `run.attention_run(layer).weights(heads, dests)`.

        Args:
            layer: Index of a layer with attention.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.pattern(3).shape
        torch.Size([8, 15, 15])
        """
        record = self.attention_run(layer)
        with exact_matmul():
            return record.weights(record.heads, range(len(self)))

    def next(self, k: int = 5, *, end: int | str = -1) -> "NextTokens":
        """Which tokens would the model write next? The likeliest, with their probabilities, as a table.

        Args:
            k: How many tokens.
            end: After which token of the prompt: a position, or the text of one token. Default: the last.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> print(run.next(1))
        'Mary' 1
        """
        from keyhole.tracing.answers import next_tokens

        return next_tokens(self, k, end=end)

    def position(self, where: SupportsIndex | str, name: str = "position") -> int:
        """A token position: an integer (negative counts from the end) or the text of exactly one token.

        Args:
            where: The position or the text.
            name: What the parameter is called in the message of a refusal.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.position("Mary"), run.position(-1)
        (2, 14)
        """
        if not isinstance(where, str):
            where = operator.index(where)
            if not -len(self) <= where < len(self):
                raise KeyholeError(f"{name} {where} is outside the prompt, which has {len(self)} tokens.")
            return where % len(self)
        places = [t for t, token in enumerate(self.tokens) if token.strip() == where.strip()]
        if len(places) == 1:
            return places[0]
        listing = " ".join(f"{t}:{token.strip()}" for t, token in enumerate(self.tokens))
        if places:
            raise KeyholeError(f"{name} {where!r} is ambiguous: tokens {places} read so. Give a number. {listing}")
        raise KeyholeError(f"{name} {where!r} is not a token of the prompt. Its tokens: {listing}")

    def channels(
        self,
        head: Head,
        dest: int | str = -1,
        src: int | str | None = None,
        *,
        basis: "Basis" = "linear",
    ) -> "Channels":
        """How does this score split over the head's singular channels? See `keyhole.qk.channels`.

        Args:
            head: Layer and head, such as (3, 6).
            dest: The attending token: a position or the text of one token. Default: the last.
            src: The attended token, given likewise. Default: the one that `dest` attends to most.
            basis: "linear": channels of W_Q W_K^T. "homogeneous": biases are part of them.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.channels((1, 6), src="Mary").n_recon()
        5
        """
        from keyhole.qk.channels import channels

        return channels(self, head, dest, src, basis=basis)

    @old_keyword("why", "why_not", why_not_of)
    def explain(
        self,
        head: Head,
        dest: int | str = -1,
        src: int | str | None = None,
        *,
        tau: "Tau" = "dynamic",
        keys: "Keys" = "all",
        why_not: bool = False,
    ) -> "Firing":
        """Which signals cause this attention weight, or keep the head from attending?

        Args:
            head: Layer and head, such as (3, 6).
            dest: The attending token: a position (negative counts from the end) or the text of one token.
            src: The attended token, given likewise. Default: the one that `dest` attends to most.
            tau: The weight below which the attention counts as gone: a number, a function of `dest`, or "dynamic",
                min(1, 2.5 / visible keys).
            keys: What a removal on the src side touches: "all" keys, as in the paper, or the "source" alone.
            why_not: Explain what keeps the head from attending to `src`, instead of why it attends.

        Returns:
            A `Firing`: per side, the fewest signals whose removal takes the weight below tau (with `why_not`: lifts it
            to tau), each with its writer, its channels and what it is worth. `print` shows it.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> firing = run.explain((1, 6), src="Mary")
        >>> firing.attention > firing.tau
        True
        """
        from keyhole.tracing.why import explain

        return explain(self, head, dest, src, tau=tau, keys=keys, why_not=why_not)

    def explain_mlp(
        self,
        layer: int,
        pos: int | str,
        direction: "Float[Tensor, 'd_model']",
        *,
        cover: float = 0.8,
        constants: "Constants" = "baseline",
    ) -> "MlpWrite":
        """Which writers made an MLP write this along a direction? See `keyhole.tracing.mlp_causes`.

        Args:
            layer: Index of the layer.
            pos: The token: a position or the text of one token.
            direction: The direction, such as `run.toward("Mary")`.
            cover: The share of the write that the causes make up at least.
            constants: "baseline": what biases write in every prompt is no cause. "causes": it is one like any other.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.explain_mlp(3, -1, run.toward("Mary", "John")).value > 0
        True
        """
        from keyhole.tracing.mlp_causes import explain_mlp

        return explain_mlp(self, layer, pos, direction, cover=cover, constants=constants)

    def toward(
        self, target: "Tokens", against: "Tokens | None" = None, *, end: int | str = -1
    ) -> "Float[Tensor, 'd_model']":
        """The direction at a token that raises an answer's logit, against another's.

        Args:
            target: The answer, as `trace` takes it.
            against: The other answer. Default: none, and the direction raises the answer's logit.
            end: The token after which the answer is predicted. Default: the last.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.toward("Mary", "John").shape
        torch.Size([128])
        """
        from keyhole.tracing.mlp_directions import toward

        return toward(self, target, against, end=end)

    def firings(self, tau: float | None = None, *, dest: int | str | None = None) -> "FiringTable":
        """Which heads fire where? A table, most above uniform first. See `keyhole.qk.firings`.

        See `keyhole.qk.firings`.

        Args:
            tau: The least weight. Default: the dynamic threshold min(1, 2.5 / visible keys).
            dest: One attending token, as a position or a text. Default: all.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> len(run.firings(0.5, dest=-1)) > 0
        True
        """
        from keyhole.qk.firings import FiringTable, find_firings

        return FiringTable(self.tokens, tuple(find_firings(self, tau, dest=dest)))

    def plot(self, head: Head) -> "Figure":
        """Where does this head attend? A picture of all its weights. See `keyhole.figures.attention`.

        Args:
            head: Layer and head, such as (3, 6).

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> len(run.plot((3, 6)).axes)
        2
        """
        from keyhole.figures.attention import head_figure

        return head_figure(self, head)

    def trace(
        self,
        target: "Target" = None,
        *,
        against: "Tokens | Continuation | None" = None,
        settings: TraceSettings | None = None,
        end: int | str = -1,
        progress: "Progress | None" = None,
        **options: Unpack[TraceOptions],
    ) -> "Circuit":
        """Which circuit is behind this answer?

        Args:
            target: The answer: a token as text or id, several of them, `Likeliest(k)` or `Likeliest(p=0.9)`. Default:
                the likeliest next token; see `run.next()`. A text of several tokens such as "New York", or a
                `Continuation` of ids, is followed: its tokens are traced together, each where it is predicted.
            against: The other answer, given likewise: the lead of `target` over it is traced, not a probability. Where
                either is several tokens, at the first token in which they differ; see `run.trace_both`.
            settings: How it is traced: a `keyhole.tracing.TraceSettings`, whose fields are the choices below.
            end: The token after which the answer is predicted: a position or a text. Default: the last.
            progress: Called with the number of layers done and their total.
            **options: Choices by name, as in `run.trace("Mary", tau=0.2)`; beside a record they change it:
                - `method`: "accpp", or "svt" (the 2024 method, attention heads only), or a `SvtSettings` with other
                  settings.
                - `metric`: How the answer's score is read: "prob" (its log-likelihood; the default),
                  "linear" (its logit; the default with `against` and for svt), a `Probability` with another share, or a
                  `Probe`.
                - `tau`: The weight below which an attention weight counts as gone, as `run.explain` takes it.
                - `keys`: What a removal on the src side touches: "all" keys, or the "source" alone.
                - `first_token`: What becomes of firings on the first token: "keep" explains them, "mark" marks them,
                  too, "collapse" keeps them without a further explanation.
                - `through`: "mlps" goes on through MLPs to the tokens, "heads" ends at MLPs; a `Through` has settings,
                  such as `Through(eps=0.003)`, which follows weaker parts.

        Returns:
            A `Circuit`: nodes (writers) joined by edges (signals), with every choice that was made. Next steps:
            `print(circuit.story())`, `circuit.verify()`, `circuit.save("mary.json")`, `circuit.show()`.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John")
        >>> circuit.parameters.target_text
        ('Mary',)
        """
        from keyhole.tracing.trace import trace

        return trace(self, target, against=against, settings=settings, end=end, progress=progress, **options)

    def trace_both(
        self,
        target: "Target",
        against: "Target",
        *,
        settings: TraceSettings | None = None,
        end: int | str = -1,
        progress: "Progress | None" = None,
        **options: Unpack[TraceOptions],
    ) -> "Both":
        """Which circuits are behind two answers, side by side, where one or both are several tokens?

        Args:
            target: One answer, as text, id or `Continuation`.
            against: The other, given likewise.
            settings: How they are traced, as `trace` takes it.
            end: The token after which they are predicted. Default: the last.
            progress: Called with the number of layers done and their total.
            **options: Choices by name, as `trace` takes them.

        Returns:
            A `Both`: the difference of total log-probabilities, each answer's circuit in its own run (`target`,
            `against`), and the circuit of the first tokens in which they differ (`apart`). `print` shows it.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.trace_both("Mary", "John", through="heads").difference > 0
        True
        """
        from keyhole.tracing.both import trace_both

        return trace_both(self, target, against, settings=settings, end=end, progress=progress, **options)

    def with_edits(self, edits: "Sequence[Edit]") -> "Run":
        """The same prompt with edits: see `keyhole.edits`, and `keyhole.edits.changes` for what they did.

        Args:
            edits: What is edited, such as `[edge.edit(factor=0)]` or a `ChannelEdit`.

        Returns:
            A `Run` with `run.edits`. Its attention and answers can be looked at; it cannot be traced.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> from keyhole.edits import ChannelEdit
        >>> run.with_edits([ChannelEdit(head=(3, 6), channels=(0,))]).next(1)
        <next tokens: 'Mary' 1>
        """
        from keyhole.edits.changes import with_edits

        return with_edits(self, edits)

    def sufficient(
        self,
        target: "Target" = None,
        *,
        against: "Tokens | None" = None,
        like: "Likes | None" = None,
        counterfactual: "Prompt | Example | None" = None,
        settings: SufficientSettings | None = None,
        end: int | str = -1,
        progress: "Progress | None" = None,
        **options: Unpack[SufficientOptions],
    ) -> "Circuit":
        """Which small circuit carries this answer by itself?

        Args:
            target: The answer, as `trace` takes it. Default: the likeliest next token.
            against: The other answer: the lead of `target` over it is kept, not a probability.
            like: Prompts of the same template with other names or values (texts, token ids or `Example`s), at least
                eight. Everything outside the circuit is set to its mean over them.
            counterfactual: One prompt of equal length instead, whose values are taken. Without either, the mean over
                copies of the prompt with other words. `like="resting"`: what the model writes in any text, which needs
                many more edges.
            settings: What is asked of the circuit: a `SufficientSettings`, whose fields are the choices below.
            end: The token after which the answer is predicted. Default: the last.
            progress: Called with how much is done, of a thousand.
            **options: Choices by name; beside a record they change it:
                - `level`: The share of the answer that the circuit keeps at least, 0.9: of the gap between the prompt
                  and the baseline.
                - `both_signs`: Also keep edges that hold the answer back; they have a negative share.
                - `signals`: How many signals of each side of a head are attached: the strongest 2.

        Returns:
            A `Circuit` with `circuit.measured`: effects and shares of its edges, and what it keeps (`faithfulness`).
            Refused where the gap is less than one logit, or where no set of edges keeps enough.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.sufficient("Mary", level=0.8).measured.faithfulness is not None
        True
        """
        from keyhole.faithfulness.sufficient import sufficient

        how = chosen(settings, SufficientSettings, options)
        return sufficient(
            self,
            target,
            against=against,
            like=like,
            counterfactual=counterfactual,
            settings=how,
            end=end,
            progress=progress,
        )

    def writers(self, layer: int, pos: int | str) -> "Split":
        """Who wrote the residual stream that this layer reads at this token? See `keyhole.tracing.writers`.

        Args:
            layer: The layer that reads. The number of layers stands for the final norm.
            pos: The token: a position or the text of one token.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.writers(3, "Mary").error < 1e-5
        True
        """
        from keyhole.tracing.writers import split

        return split(self, layer, pos)

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute exists
        __getattr__ = attributes_of("Run")
