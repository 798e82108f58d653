"""A loaded model: its facts, its folded weights, and how to run it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

import torch
from torch import Tensor, nn

from keyhole._moved import attributes_of
from keyhole.errors import KeyholeError
from keyhole.models.affine import comparing
from keyhole.models.attention import edits_of
from keyhole.models.capture import Captured, capture, frozen_scale, layer_batch
from keyhole.models.facts import rope_types
from keyhole.models.families import Family, family_of
from keyhole.models.memory import drop_oldest
from keyhole.models.mlps import MlpWeights, NoMlp, read_mlp
from keyhole.models.numbers import fingerprint, require_finite_run, require_finite_weights, stamp
from keyhole.models.run import LayerRun, Run
from keyhole.models.stacks import cut_layer
from keyhole.models.stored import adapter_state, device_of, missing_of, tensors_here
from keyhole.models.tokens import Encoded, Prompt, encode
from keyhole.models.weights import (
    Dims,
    HeadOut,
    LayerWeights,
    optional,
    read_dims,
    read_head_out,
    read_layer,
    read_queries_keys,
    submodule,
)
from keyhole.settings.measuring import GenerateOptions, GenerateSettings

if TYPE_CHECKING:
    from keyhole.edits.records import Edit
    from keyhole.features.contrast.found import Found
    from keyhole.features.contrast.sites import Contrast
    from keyhole.features.contrast.studies import StudySettings
    from keyhole.generation.generated import Generated
    from keyhole.generation.writing import Show

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Model:
    """A Hugging Face decoder that Keyhole can read exactly. Made by `keyhole.load`."""

    hf: Any = field(repr=False)  # the Hugging Face model, as it was loaded
    tokenizer: Any = field(repr=False)  # None: prompts must be token ids
    name: str  # where it was loaded from
    family: Family = field(repr=False)  # facts about its architecture
    dims: Dims  # layers, heads, widths
    tokenizer_problem: str | None = field(default=None, repr=False)  # why there is no tokenizer, if loading one failed
    memory: int | None = field(default=None, repr=False)  # how many bytes folded weights may take; None: all are kept
    _cache: dict[Any, tuple[int, Any]] = field(default_factory=dict, repr=False)
    _stamps: list[int] = field(default_factory=list, repr=False)  # of all weights, while `_steady` holds them unchanged
    _checked: dict[Any, int] = field(default_factory=dict, repr=False)  # under which of these a value was looked at

    # -- running -------------------------------------------------------------------------------------------

    def run(self, prompt: Prompt, *, bos: bool | None = None) -> Run:
        """Run one prompt once and record everything that the methods need.

        Args:
            prompt: Text, token ids (a list, an array or a tensor), or a chat: a list of messages, each
                {"role": "user", "content": "..."}, which the model's chat template makes text of.
            bos: Put a beginning-of-sequence token first? Default: whatever the tokenizer does with text, and nothing
                before token ids. The run records what was done.

        Returns:
            A `Run`: ask it with `run.next()`, `run.firings()`, `run.explain(...)` and `run.trace(...)`.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> len(run), run.next(1)
        (15, <next tokens: 'Mary' 1>)
        """
        return self.run_many([prompt], bos=bos)[0]

    def run_many(
        self, prompts: Iterable[Prompt], *, bos: bool | None = None, max_batch_tokens: int = 4096
    ) -> list[Run]:
        """Run several prompts in padded batches; every Run equals the single one up to float rounding.

        Args:
            prompts: Texts, token ids or chats, one per prompt.
            bos: As `run` takes it.
            max_batch_tokens: How many tokens, padding included, are run together; memory grows with it.

        >>> import keyhole
        >>> runs = keyhole.load().run_many(["Mary met John", "When Mary and John went"])
        >>> [len(run) for run in runs]
        [4, 6]
        """
        if isinstance(prompts, str):
            raise KeyholeError("run_many takes a list of prompts; for one prompt use run.")
        encoded = [encode(self, prompt, bos) for prompt in prompts]
        runs: dict[int, Run] = {}
        for batch in self._batches([len(e.ids) for e in encoded], max_batch_tokens):
            longest = max(len(encoded[i].ids) for i in batch)
            rows = [[*encoded[i].ids, *[0] * (longest - len(encoded[i].ids))] for i in batch]
            ids = torch.tensor(rows, device=self.device)
            watch = comparing(self.hf, self.family, keep=self.memory is None)
            captured = capture(self.hf, self.family, ids, watch, head_out=self.head_out)
            layers = [layer_batch(n, self.family, self.dims, self.hf.config) for n in captured.layers]
            made_with = self._stamp()
            for row, i in enumerate(batch):
                runs[i] = self._to_run(encoded[i], captured, layers, row=row, made_with=made_with)
        return [runs[i] for i in range(len(encoded))]

    def _to_run(self, encoded: Encoded, captured: Captured, layers: list[LayerRun], *, row: int, made_with: int) -> Run:
        n = len(encoded.ids)
        residuals = [layer.resid[row, :n] for layer in layers]
        require_finite_run([*residuals, captured.final[row, :n]], captured.logits[row, :n])
        final_norm = submodule(self.hf, self.family.final_norm)
        return Run(
            model=self,
            token_ids=encoded.ids,
            tokens=encoded.tokens,
            bos=encoded.bos,
            layers=tuple(cut_layer(layer, row, n) for layer in layers),
            final_resid=captured.final[row, :n],
            final_scale=frozen_scale(final_norm, captured.final[row : row + 1, :n], self.family)[0],
            logits=captured.logits[row, :n],
            _stamp=made_with,
            edits=edits_of.get(id(self.hf), ()),
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        settings: GenerateSettings | None = None,
        edits: "Sequence[Edit]" = (),
        bos: bool | None = None,
        show: "Show | None" = None,
        **options: Unpack[GenerateOptions],
    ) -> "Generated":
        """What would the model write after this prompt? By transformers' own `generate`, with its cache.

        Args:
            prompt: As `run` takes it.
            settings: How it is written: a `keyhole.generation.GenerateSettings`, whose fields are the choices below.
            edits: What is edited meanwhile, such as `[edge.edit(factor=0)]`: see `keyhole.edits`.
            bos: As `run` takes it.
            show: Called with each token as it is written, a `Piece`; an exception from there ends the work. Ctrl-C
                returns what is written.
            **options: Choices by name, as in `model.generate("Hello", max_new_tokens=8)`:
                - `max_new_tokens`: How many tokens are written at most.
                - `temperature`: 0 takes the likeliest token always; above it, tokens are drawn.
                - `top_p`: Draw from the likeliest tokens that make up this share of the probability.
                - `top_k`: Draw from this many of the likeliest tokens.
                - `seed`: Of the draws.
                - `stop`: A text, or several, at which the answer ends.

        Returns:
            A `Generated`: its text, its tokens with their probabilities, why it ended, and `generated.run`, the run of
            prompt and answer. Ask any token with `generated.trace(at=0)`, `explain` and `story`.

        >>> import keyhole
        >>> keyhole.load().generate("When Mary and John", max_new_tokens=2).text
        ' went to'
        """
        from keyhole.generation.writing import generate

        return generate(self, prompt, settings=settings, edits=edits, bos=bos, show=show, **options)

    def edited(self, edits: "Sequence[Edit]") -> "AbstractContextManager[None]":
        """A context in which the model answers with edits, whatever code calls it. See `keyhole.edits.edited`.

        Args:
            edits: What is edited, as `generate` takes it.

        >>> import keyhole
        >>> from keyhole.edits import ChannelEdit
        >>> model = keyhole.load()
        >>> with model.edited([ChannelEdit(head=(3, 6), channels=(0,))]):
        ...     edited = model.hf(torch.tensor([[1, 2, 3]])).logits
        >>> torch.equal(edited, model.hf(torch.tensor([[1, 2, 3]])).logits)
        False
        """
        from keyhole.edits.applying import edited

        return edited(self, edits)

    def contrast(
        self, contrast: "Contrast", test: "Contrast | None" = None, *, settings: "StudySettings | None" = None
    ) -> "Found":
        """Which heads tell a contrast's keys apart, and by which feature? Judged by samples that did not make it.

        See `keyhole.features.contrast.found`.

        Args:
            contrast: The contrast.
            test: Samples to judge with. Default: one half of the contrast's own, which do not make the features.
            settings: How features are found and tested: a `StudySettings`.

        >>> import keyhole
        >>> from keyhole.features.contrast import order_contrast
        >>> model = keyhole.load()
        >>> found = model.contrast(order_contrast(model, 40, n_boxes=3))
        >>> len(found.heads)
        32
        """
        from keyhole.features.contrast.found import find_heads

        return find_heads(self, contrast, test, settings)

    def _batches(self, lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
        """Prompts of similar length together; of equal length where RoPE itself depends on the length."""
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        batches: list[list[int]] = []
        for i in order:
            fits = bool(batches) and (len(batches[-1]) + 1) * lengths[i] <= max_tokens
            if fits and (lengths[batches[-1][0]] == lengths[i] or not self.rope_sees_length):
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches

    @property
    def rope_sees_length(self) -> bool:
        """Does RoPE depend on how long a prompt is? What follows a token then changes what was computed at it."""
        return bool(rope_types(self.hf.config.get_text_config()) & {"dynamic", "longrope"})

    @property
    def device(self) -> torch.device:
        """Where prompts go in, and where what is recorded of them lies."""
        return device_of(self.hf)

    # -- folded weights ------------------------------------------------------------------------------------

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers, as the model keeps them."""
        return list(submodule(self.hf, self.family.layers).children())

    @property
    def attention_layers(self) -> list[int]:
        """The layers that have attention heads."""
        return [i for i, block in enumerate(self.blocks) if optional(block, self.family.attn) is not None]

    def folded(self, layer: int) -> LayerWeights:
        """One attention layer's folded weights, folded anew when the model's weights have changed.

        Args:
            layer: Index of a layer with attention.

        >>> import keyhole
        >>> keyhole.load().folded(3).kv(6)
        6
        """
        return self._cached(("weights", layer), lambda: self._attention_modules(layer), lambda: self._fold(layer))

    def _fold(self, layer: int) -> LayerWeights:
        folded = read_layer(self.blocks[layer], self.family, self.dims, self.hf.config)
        if folded is None:
            raise KeyholeError(f"layer {layer} has no attention heads: it mixes tokens with another block.")
        return folded

    def mlp(self, layer: int) -> MlpWeights | NoMlp:
        """One layer's MLP, or the reason why it cannot be read: circuits then end there.

        Args:
            layer: Index of the layer.

        >>> import keyhole
        >>> type(keyhole.load().mlp(0)).__name__
        'MlpWeights'
        """
        block = self.blocks[layer]
        return self._cached(("mlp", layer), lambda: [block], lambda: read_mlp(block, self.family, self.hf.config))

    def _queries_keys(self, layer: int) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """(W, b, c) of a layer's queries and of its keys, folded in float64 where the device has it; not kept."""
        block = self.blocks[layer]
        attn = submodule(block, self.family.attn)
        dtype = None if self.folded(layer).W_Q.device.type == "mps" else torch.float64
        return read_queries_keys(block, attn, self.family, self.dims, dtype)

    def head_out(self) -> HeadOut:
        """The folded map from the last residual stream to logits.

        >>> import keyhole
        >>> type(keyhole.load().head_out()).__name__
        'HeadOut'
        """
        modules = (self.hf.get_output_embeddings(), submodule(self.hf, self.family.final_norm))
        return self._cached(("head_out",), lambda: modules, lambda: read_head_out(self.hf, self.family))

    def _cached(self, key: Any, modules: Callable[[], Iterable[nn.Module]], compute: Callable[[], T]) -> T:
        """A value made from modules' weights, made again when they have changed (a stale SVD is silently wrong)."""
        if not (self._stamps and self._checked.get(key) == self._stamps[-1]):
            now = _state_of(modules())
            if key not in self._cache or self._cache[key][0] != now:
                self._cache[key] = (now, compute())
                self._checked.pop(key, None)  # an adapter may be switched off and on: the same weights come back
                for dropped in (
                    () if self.memory is None else drop_oldest(self._cache, self.memory, self.hf, self.blocks)
                ):
                    self._checked.pop(dropped, None)
            if self._stamps:
                self._checked[key] = self._stamps[-1]
        if self.memory is not None:
            self._cache[key] = self._cache.pop(key)  # the last to be dropped
        return cast(T, self._cache[key][1])

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """Within one piece of work, which changes no weights, these are looked at once, not for each value made."""
        self._stamps.append(self._stamp())
        try:
            yield
        finally:
            self._stamps.pop()

    def _cached_of_layer(self, key: Any, layer: int, compute: Callable[[], T]) -> T:
        """`_cached` for a value made from one layer's attention weights."""
        return self._cached((key, layer), lambda: self._attention_modules(layer), compute)

    def _attention_modules(self, layer: int) -> list[nn.Module]:
        block = self.blocks[layer]
        names = (self.family.attn, self.family.attn_norm, self.family.post_attn_norm)
        return [module for module in (optional(block, name) for name in names) if module is not None]

    def _stamp(self) -> int:
        """Changes when any weight does, or an adapter is switched."""
        return self._stamps[-1] if self._stamps else _state_of([self.hf])

    def fingerprint(self) -> str:
        """SHA-256 of all weights; computed once, and again when they change.

        >>> import keyhole
        >>> len(keyhole.load().fingerprint())
        64
        """
        return self._cached(("fingerprint",), lambda: [self.hf], lambda: fingerprint(self.hf))

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute exists
        __getattr__ = attributes_of("Model")


def _state_of(modules: Iterable[nn.Module]) -> int:
    modules = list(modules)
    return hash((stamp(tensors_here(modules)), adapter_state(modules)))


def make_model(hf: Any, tokenizer: Any, name: str) -> Model:
    """Wrap a loaded Hugging Face model, or refuse it with the reason."""
    config = hf.config
    if hf.get_output_embeddings() is None:
        raise KeyholeError(f"{name} has no language-model head: load a causal language model.")
    family = family_of(config)
    if missing := missing_of(hf):
        raise KeyholeError(
            f"{name} has weights that are not in memory, such as {missing[0]}: load it with keyhole.load, or without "
            "offloading."
        )
    require_finite_weights(hf, name)
    return Model(hf, tokenizer, name, family, read_dims(hf, family))
