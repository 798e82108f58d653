"""What stands in for a writer that is taken away? What it writes on other text, and never nothing.

    mean            over prompts like this one: the same template, other names or values; this prompt left out
    words           over copies of this prompt with other words, which the model finds likely there: the default
    counterfactual  one prompt of equal length (patching)
    resting         over text that has nothing to do with the prompt, the first token apart; the same for all prompts

Zero is no baseline: under a norm the answer does not depend on the size of a stream, so that halves of it are worth as
much as the whole.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from keyhole import cache
from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.faithfulness.masked import FLOATS, masked
from keyhole.faithfulness.other_words import words_of
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import Prompt, encode, prompt_text, text_ids
from keyhole.progress import Progress, silent
from keyhole.strict import printable, quoted, read_text, shortened
from keyhole.tasks.corpus import documents, knows_tasks_alone
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

LEAST, MOST = 8, 64  # prompts that a mean is taken over
COPIES = 24  # of a prompt with other words
AGREE = 0.5  # share of tokens that prompts of one template have in common, at least
PIECES, LENGTH = 24, 24  # of text for the resting state, in tokens
NAME = 60  # characters of a text's file name
BaselineKind = Literal["mean", "words", "counterfactual", "resting"]
# Prompts like one at hand (of examples, the answers are known), copies with other words, or the resting state.
Likes = Sequence[Prompt | Example] | Literal["words", "resting"]


@dataclass(frozen=True, eq=False)
class Baseline:
    """What every writer writes at every token instead of what it wrote in the prompt."""

    __repr__ = brief

    kind: BaselineKind
    name: str  # as it stands beside numbers: "the mean of 31 prompts like this one"
    writes: Float[Tensor, "writer pos d_model"]
    note: str = ""  # what to be careful about
    prompts: tuple[tuple[int, ...], ...] = ()  # token ids of those that a mean was taken over

    def __str__(self) -> str:
        return self.name


def baseline(
    run: "Run",
    *,
    like: Likes | None = None,
    counterfactual: Prompt | Example | None = None,
    text: Path | str | None = None,
    progress: Progress | None = None,
) -> Baseline:
    """The baseline for a prompt: the mean over prompts `like` it, or a `counterfactual` prompt.

    Without any of the three, it is the mean over copies of the prompt with other words.

    Args:
        run: The run of the prompt.
        like: Prompts of the same template, at least eight. "words": copies of this prompt with other words. "resting":
            what the model writes in any text, which for the organism is its corpus and for other models text that they
            write themselves.
        counterfactual: One prompt of equal length.
        text: A file to take the resting state of, a paragraph a line.
        progress: Called with the number of passes done and their total.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> baseline(run, like="words").name
    'the mean of 24 copies of the prompt with other words'
    """
    if sum(given is not None for given in (like, counterfactual, text)) > 1:
        raise KeyholeError("give prompts like this one, or a counterfactual prompt, or a text: one baseline at a time.")
    with run.model._steady():
        if counterfactual is not None:
            return patched(run, counterfactual)
        if text is not None or like == "resting" or (like is None and run.model.tokenizer is None):
            return resting(run, text, progress=progress)
        if like is None or like == "words":
            return other_words(run, progress=progress)
        if isinstance(like, str):
            raise KeyholeError(
                f"prompts like this one are a list of prompts, 'words' or 'resting', and not {quoted(like)}."
            )
        return mean_of(run, like, progress=progress)


def other_words(run: "Run", *, progress: Progress | None = None) -> Baseline:
    """The mean over copies of the prompt with its content words exchanged."""
    words = words_of(run)
    if not words.content:
        return resting(run, progress=progress)
    copies = list(dict.fromkeys(copy for copy in words.copies(words.content, COPIES, seed=0) if copy != run.token_ids))
    writes = _mean_writes(run.model, copies, progress or silent)
    return Baseline("words", f"the mean of {len(copies)} copies of the prompt with other words", writes)


def mean_of(run: "Run", like: Likes, *, progress: Progress | None = None) -> Baseline:
    """The mean over prompts of the same template, of which at least eight others are needed."""
    assert not isinstance(like, str)
    encoded = [ids_like(run, prompt) for prompt in like]
    lengths = sorted({len(ids) for ids in encoded if len(ids) != len(run)})
    if lengths:
        odd = next(prompt for prompt, ids in zip(like, encoded, strict=True) if len(ids) != len(run))
        count = len(ids_like(run, odd))
        raise KeyholeError(
            f"prompts like this one have as many tokens, {len(run)}: {quoted(_text(odd))} has {count}. "
            "Writers are matched token by token, so give the same template with other words of as many tokens."
        )
    others = list(dict.fromkeys(ids for ids in encoded if ids != run.token_ids))[:MOST]
    if len(others) < LEAST:
        raise KeyholeError(
            f"a mean is taken over at least {LEAST} different prompts like this one, itself left out: these are "
            f"{len(others)}. Give more, or a counterfactual prompt."
        )
    shared = sum(a == b for ids in others for a, b in zip(ids[1:], run.token_ids[1:], strict=True))
    agree = shared / (len(others) * max(1, len(run) - 1))
    note = ""
    if agree < AGREE:
        note = (
            f"the prompts have only {agree:.0%} of their tokens in common with this one: a mean over prompts that "
            "merely have the same length is a poor baseline"
        )
    writes = _mean_writes(run.model, others, progress or silent)
    return Baseline("mean", f"the mean of {len(others)} prompts like this one", writes, note, tuple(others))


def exchanged(run: "Run", mean: Baseline, other: "Run") -> Baseline:
    """A mean for another of its prompts: with this run's writes in the place of that one's."""
    n = len(mean.prompts)
    with exact_matmul(), torch.no_grad():
        this, that = (masked([of], check=False).written()[:, 0] for of in (run, other))
    return replace(mean, writes=mean.writes + (this - that) / n)


def patched(run: "Run", counterfactual: Prompt | Example) -> Baseline:
    """What writers write in another prompt of equal length."""
    ids = ids_like(run, counterfactual)
    if len(ids) != len(run):
        given = quoted(_text(counterfactual))
        raise KeyholeError(
            f"the counterfactual prompt {given} has {len(ids)} tokens, and this one {len(run)}: "
            "writers are matched token by token, so give one of equal length."
        )
    if ids == run.token_ids:
        raise KeyholeError("the counterfactual prompt is this prompt itself: nothing would change.")
    writes = _mean_writes(run.model, [ids], silent)
    name = f"the prompt {prompt_text(run.model.tokenizer, ids)!r}"
    return Baseline("counterfactual", name, writes)


def resting(run: "Run", text: Path | str | None = None, *, progress: Progress | None = None) -> Baseline:
    """What writers write on average in any text; the first token, where heads rest, has a mean of its own."""
    model, lines = run.model, None if text is None else read_paragraphs(text)
    rest = model._cached(("resting", lines or ""), lambda: [model.hf], lambda: _rest(model, lines, progress))
    writes = rest[:, [0] + [1] * (len(run) - 1)]
    name = (
        "the resting state" if text is None else f"the resting state in {shortened(printable(Path(text).name), NAME)}"
    )
    return Baseline("resting", name, writes)


def read_paragraphs(text: Path | str) -> str:
    """A text to take the resting state of; an empty file is refused."""
    lines = read_text(text)
    if not lines.strip():
        raise KeyholeError(f"there is no text in {text}: a resting state needs {LEAST} lines, a paragraph a line.")
    return lines


def _rest(model: "Model", lines: str | None, progress: Progress | None) -> Float[Tensor, "writer 2 d_model"]:
    """Mean writes at first tokens and at all others; kept on disk by the model's weights."""
    which = "own" if lines is None else hashlib.sha256(lines.encode()).hexdigest()
    parameter = next(model.hf.parameters())
    key = cache.key_of(what="resting state 1", model=model.fingerprint(), dtype=str(parameter.dtype), text=which)
    if (entry := cache.find(key)) is not None:
        kept: Tensor = load_file(entry.path / "resting.safetensors")["rest"]
        return kept.to(model.device)
    pieces = _pieces(model, lines)
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for ids in pieces:
        by_length[len(ids)].append(ids)
    sums, done = [], 0
    for alike in by_length.values():
        written = _mean_writes(model, alike, partial(_report, progress or silent, done, len(pieces))) * len(alike)
        sums.append(torch.stack([written[:, 0], written[:, 1:].sum(1)], 1))
        done += len(alike)
    counts = sums[0].new_tensor([len(pieces), sum(len(ids) - 1 for ids in pieces)])
    rest: Tensor = torch.stack(sums).sum(0) / counts[:, None]
    size = rest.numel() * rest.element_size()

    def write(folder: Path) -> None:
        save_file({"rest": rest.cpu().contiguous()}, folder / "resting.safetensors")

    cache.keep(key, f"resting state of {model.name}", {}, size=size, write=write)
    return rest


def _pieces(model: "Model", lines: str | None) -> list[tuple[int, ...]]:
    """Pieces of text, with what the tokenizer puts before text."""
    if lines is not None:
        texts = [line for line in lines.splitlines() if line.strip()]
    elif knows_tasks_alone(model):
        texts = documents(PIECES)
    else:
        return _written_by(model)
    cut = (text_ids(model, line, special=True)[:LENGTH] for line in texts[: 8 * PIECES])
    pieces = [ids for ids in cut if len(ids) >= LENGTH // 4]
    if len(pieces) < LEAST:
        raise KeyholeError(
            f"the text has {len(pieces)} lines of at least {LENGTH // 4} tokens: a resting state needs {LEAST}. Give a "
            "longer text, a paragraph a line."
        )
    return pieces[:PIECES]


def _written_by(model: "Model") -> list[tuple[int, ...]]:
    """What the model writes by itself, from the token that texts begin with."""
    tokenizer, config = model.tokenizer, model.hf.config
    starts = [getattr(which, name, None) for name in ("bos_token_id", "eos_token_id") for which in (tokenizer, config)]
    first = next((start for start in starts if isinstance(start, int)), 0)
    ids = torch.full((PIECES, 1), first, device=model.device)
    length = min(LENGTH, model.dims.positions or LENGTH)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        written = model.hf.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=length - 1,
            min_new_tokens=length - 1,
            pad_token_id=first,
        )
    return [tuple(row) for row in written.tolist()]


def _report(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    """A part's progress within the whole."""
    progress(before + done, total)


def _mean_writes(
    model: "Model", prompts: Sequence[Sequence[int]], progress: Progress
) -> Float[Tensor, "writer pos d_model"]:
    """The mean of what every component writes over prompts of one length."""
    dims, length = model.dims, len(prompts[0])
    size = max(1, FLOATS // (dims.layers * (dims.heads + 1) * dims.d_model * length))
    total = None
    with exact_matmul(), torch.no_grad():
        for start in range(0, len(prompts), size):
            runs = model.run_many([list(ids) for ids in prompts[start : start + size]], bos=False)
            part = masked(runs, check=False).written().sum(1)
            total = part if total is None else total + part
            progress(min(start + size, len(prompts)), len(prompts))
    assert total is not None
    return total / len(prompts)


def as_far(prompt: Prompt | Example, run: "Run", whole: "Run") -> Prompt | Example:
    """A prompt up to the answer's token, if it goes on after it as the whole run of this one does."""
    if len(run) == len(whole) or len(ids_like(whole, prompt)) < len(whole):
        return prompt
    return list(ids_like(whole, prompt)[: len(run)])


def ids_like(run: "Run", prompt: Prompt | Example) -> tuple[int, ...]:
    """A prompt as this run's was made: with a beginning-of-sequence token if that has one."""
    text = _text(prompt)
    return encode(run.model, text, run.bos if isinstance(text, str) else None).ids


def _text(prompt: Prompt | Example) -> Prompt:
    return prompt.text if isinstance(prompt, Example) else prompt
