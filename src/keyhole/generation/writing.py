"""How does a model write on? By transformers' own `generate`, with its cache, which is watched token by token.

The model's own `generation_config` is left aside but for its end tokens: a penalty of repetitions, say, would make the
answer another one than the model's probabilities, which are traced.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from keyhole.edits.applying import edited
from keyhole.edits.checks import require_edits
from keyhole.edits.records import Edit
from keyhole.errors import KeyholeError
from keyhole.generation.generated import Generated, GeneratedToken, Stopped
from keyhole.models.attention import edits_of
from keyhole.models.capture import undisturbed
from keyhole.models.run import Run
from keyhole.models.tokens import Prompt, encode, token_texts
from keyhole.settings.fields import chosen
from keyhole.settings.measuring import GenerateOptions, GenerateSettings

if TYPE_CHECKING:
    from keyhole.models.model import Model

_CUT = "\ufffd"  # where a token ends within a character


@dataclass(frozen=True)
class Piece:
    """One token, just written."""

    index: int  # in the answer
    id: int  # in the vocabulary
    text: str  # what it adds to the answer; empty while a character is not whole


Show = Callable[[Piece], None]


def generate(
    model: "Model",
    prompt: Prompt,
    *,
    settings: GenerateSettings | None = None,
    edits: Sequence[Edit] = (),
    bos: bool | None = None,
    show: Show | None = None,
    **options: Unpack[GenerateOptions],
) -> Generated:
    """What would the model write after this prompt, with or without edits? See `Model.generate` for the options.

    Args:
        model: The model.
        prompt: Text, token ids or a chat, as `Model.run` takes it.
        settings: How it is written: a `GenerateSettings`.
        edits: What is edited meanwhile.
        bos: Put a beginning-of-sequence token first? As `Model.run` takes it.
        show: Called with each token as it is written.
        **options: The fields of `settings` by name.

    >>> import keyhole
    >>> answer = generate(keyhole.load(), "When Mary and John", max_new_tokens=2)
    >>> answer.text, answer.stopped
    (' went to', 'length')
    """
    how = chosen(settings, GenerateSettings, options)
    encoded = encode(model, prompt, bos)
    require_edits(model, edits, len(encoded.ids) + how.max_new_tokens)
    with edited(model, edits):
        ids, stopped = write(model, encoded.ids, how, show)
        run = model.run([*encoded.ids, *ids])
        tokens = _tokens(run, len(ids))
    shown = prompt if isinstance(prompt, str) else _decoded(model, encoded.ids, special=True)
    return Generated(shown, _added(model, encoded.ids, ids), tokens, stopped, how, run)


def write(
    model: "Model", prompt: Sequence[int], how: GenerateSettings, show: Show | None = None
) -> tuple[list[int], Stopped]:
    """The token ids that the model writes after these, and why it ended; what `show` raises ends it with an error."""
    hf = model.hf
    if not hasattr(hf, "generate"):
        raise KeyholeError(f"{type(hf).__name__} cannot write: transformers has no `generate` for it.")
    if how.stop and model.tokenizer is None:
        raise KeyholeError(f"{model.name} has no tokenizer, so that a stop text cannot be read: leave it out.")
    positions = model.dims.positions
    room = how.max_new_tokens if positions is None else min(how.max_new_tokens, positions - len(prompt))
    if room < 1:
        raise KeyholeError(
            f"the prompt fills all {positions} positions of {model.name}: there is none left to write at. Shorten it."
        )
    watch = _Watch(model, tuple(prompt), how, show, room)
    ids = torch.tensor([list(prompt)], device=model.device)
    with undisturbed(hf), _plain_generation(hf, _config(model, how, room)), _seeded(model.device, how):
        try:
            hf.generate(ids, attention_mask=torch.ones_like(ids), stopping_criteria=StoppingCriteriaList([watch]))
        except KeyboardInterrupt:
            if not watch.ids:
                raise
            watch.stopped = "interrupted"
    return watch.ids, watch.stopped


def end_ids(model: "Model") -> tuple[int, ...]:
    """The tokens that end an answer: those of the model's configuration, and its tokenizer's."""
    homes = (getattr(model.hf, "generation_config", None), model.hf.config, model.tokenizer)
    ids: set[int] = set()
    for home in homes:
        value = getattr(home, "eos_token_id", None)
        ids |= {value} if isinstance(value, int) else set(value or ())
    return tuple(sorted(ids))


@dataclass
class _Watch(StoppingCriteria):  # type: ignore[misc]
    """Sees every token as it is written; ends the answer at an end token, at a stop text, or where there is no room."""

    model: "Model"
    prompt: tuple[int, ...]
    how: GenerateSettings
    show: Show | None
    room: int
    ids: list[int] = field(default_factory=list)
    stopped: Stopped = "length"
    _text: str = ""  # what was shown so far

    def __post_init__(self) -> None:
        self._ends = set(end_ids(self.model))

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Is the answer at its end? A truth value for each of the batch, which is one prompt."""
        self.ids.append(int(input_ids[0, -1]))
        if self.show is not None:
            self.show(Piece(len(self.ids) - 1, self.ids[-1], self._new_text()))
        ended = self._ended()
        return torch.full((input_ids.shape[0],), ended, dtype=torch.bool, device=input_ids.device)

    def _ended(self) -> bool:
        if self.ids[-1] in self._ends:
            self.stopped = "end"
        elif self.how.stop and any(text in _added(self.model, self.prompt, self.ids) for text in self.how.stop):
            self.stopped = "stop"
        elif len(self.ids) == self.room:
            self.stopped = "length" if self.room == self.how.max_new_tokens else "full"
        else:
            return False
        return True

    def _new_text(self) -> str:
        """What the last tokens add to the text; nothing as long as a character is not whole."""
        text = _added(self.model, self.prompt, self.ids)
        if text.endswith(_CUT) or not text.startswith(self._text):
            return ""
        self._text, before = text, self._text
        return text[len(before) :]


def _config(model: "Model", how: GenerateSettings, room: int) -> GenerationConfig:
    """All that transformers is asked for: nothing beside it, whatever the model recommends."""
    ends = list(end_ids(model))
    # a cache keeps keys as they were rotated in a shorter prompt; unrouted families are edited in whole passes
    whole = model.rope_sees_length or (not model.family.routed and id(model.hf) in edits_of)
    settings: dict[str, Any] = {"max_new_tokens": room, "use_cache": not whole}
    settings["do_sample"] = how.temperature > 0
    if how.temperature > 0:
        settings |= {"temperature": how.temperature, "top_p": how.top_p, "top_k": how.top_k or 0}
    # a pad token is asked for where there are end tokens; a single prompt is never padded
    return GenerationConfig(eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0, **settings)


@contextmanager
def _plain_generation(hf: Any, config: GenerationConfig) -> Iterator[None]:
    """Let transformers take these settings for the model's own; its own are put back afterwards."""
    before = hf.generation_config
    hf.generation_config = config
    try:
        yield
    finally:
        hf.generation_config = before


@contextmanager
def _seeded(device: torch.device, how: GenerateSettings) -> Iterator[None]:
    """Draw by the seed, and leave the random numbers of everybody else as they were."""
    if how.temperature == 0:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(how.seed)
        yield


def _tokens(run: Run, n: int) -> tuple[GeneratedToken, ...]:
    """The last tokens of a run, each with its probability after those before it."""
    start, ids = len(run) - n, run.token_ids[len(run) - n :]
    logits = run.logits[start - 1 : -1]
    if run.model.rope_sees_length:
        cut = run.model.run_many([run.token_ids[:end] for end in range(start, len(run))])
        logits = torch.stack([before.logits[-1] for before in cut])
    likely = logits.double().softmax(-1)
    values = [float(row[i]) for row, i in zip(likely, ids, strict=True)]
    return tuple(map(GeneratedToken, ids, run.tokens[start:], values))


def _added(model: "Model", prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text that tokens add after a prompt: decoded with it, since a word's space depends on what stands before."""
    before, whole = _decoded(model, prompt), _decoded(model, [*prompt, *ids])
    return whole[len(before) :] if whole.startswith(before) else _decoded(model, ids)


def _decoded(model: "Model", ids: Sequence[int], *, special: bool = False) -> str:
    if model.tokenizer is None:
        return "".join(f" {text}" for text in token_texts(None, ids))
    return str(model.tokenizer.decode(list(ids), skip_special_tokens=not special))
