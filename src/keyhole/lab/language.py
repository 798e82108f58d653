"""How does a small language model come to do its tasks? One trained here, on task text, with snapshots on the way.

A GPT-2 with the organism's vocabulary learns indirect objects, induction and plain sentences, one document per row
after its <bos>. Everything is drawn from the seed: on a CPU, the same seed gives the same snapshots bit for bit.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from keyhole import tasks
from keyhole.errors import KeyholeError
from keyhole.lab.stored import BOS, PAD, Training, gpt2_shape, learning_rate, optimizer_of, store, stored
from keyhole.models.load import load, require_device
from keyhole.models.model import Model
from keyhole.models.organism import folder
from keyhole.tasks.example import Example, pieces
from keyhole.tasks.words import THINGS

_UNSEEN = -100  # the label that cross_entropy ignores


@dataclass(frozen=True)
class LanguageSettings(Training):
    """Everything that decides the numbers of the trained model."""

    documents: int = 40_000  # in the corpus; training repeats it
    share_ioi: float = 0.8  # of the documents; those of neither task are plain sentences
    share_induction: float = 0.0  # takes far more steps to learn than ioi
    length: tuple[int, int] = (8, 16)  # words of an induction document before they repeat

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "positions", "documents", "steps", "batch", "warm_up"):
            if getattr(self, name) < 1:
                raise KeyholeError(f"{name} is {getattr(self, name)}, but training needs at least 1: give more.")
        if self.width % self.heads:
            raise KeyholeError(f"a width of {self.width} does not divide over {self.heads} heads: change one of them.")
        if min(self.share_ioi, self.share_induction) < 0 or self.share_ioi + self.share_induction > 1:
            raise KeyholeError("shares of the documents are parts of 1: give share_ioi and share_induction such ones.")
        if self.batch > self.documents:
            raise KeyholeError(f"a batch of {self.batch} needs as many documents, not {self.documents}: write more.")


@dataclass(frozen=True)
class Snapshot:
    """The weights after some steps, and how good they are."""

    step: int
    state: Mapping[str, Tensor]  # on the CPU
    accuracy: Mapping[str, float]  # task -> share of held-out prompts answered right


@dataclass(frozen=True)
class Trained:
    """A model with its history, earliest snapshot first; the last is the finished model."""

    settings: LanguageSettings
    snapshots: tuple[Snapshot, ...]
    losses: tuple[float, ...]  # of every step

    @property
    def accuracy(self) -> Mapping[str, float]:
        """How good is the finished model?"""
        return self.snapshots[-1].accuracy


def snapshot_steps(steps: int, snapshots: int = 12, first: int = 50) -> tuple[int, ...]:
    """After which steps is a snapshot taken? Before training, then log-spaced, the last after the last step.

    >>> snapshot_steps(3000, 5)
    (0, 50, 196, 766, 3000)
    """
    if snapshots < 2 or steps < 1:
        raise KeyholeError(f"{snapshots} snapshots of {steps} steps: ask for two or more, of at least one step.")
    first = min(first, steps)
    ratio = (steps / first) ** (1 / max(snapshots - 2, 1))
    return tuple(sorted({0, steps, *(round(first * ratio**i) for i in range(snapshots - 2))}))


def train_language(
    settings: LanguageSettings | None = None,
    *,
    at: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
    examples: int = 200,
    progress: Callable[[int, int], None] | None = None,
) -> Trained:
    """Train one model and keep its weights after the steps `at` (default: twelve, log-spaced).

    Accuracy of snapshots is measured on `examples` held-out prompts per task. `progress(step, steps)` is called after
    each step.
    """
    settings = settings or LanguageSettings()
    stops = set(snapshot_steps(settings.steps) if at is None else at) | {settings.steps}
    place = require_device(device)
    rows = corpus(settings).to(place)
    hf = new_language_model(settings).to(place)
    optimizer = optimizer_of(hf, settings)
    snapshots, losses = [], []
    stream = _batches(rows, settings)
    for step in range(settings.steps + 1):
        if step in stops:
            snapshots.append(Snapshot(step, _state(hf), accuracy(hf, examples)))
        if step == settings.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        losses.append(_step(hf, optimizer, next(stream)))
        if progress is not None:
            progress(step + 1, settings.steps)
    return Trained(settings, tuple(snapshots), tuple(losses))


def save_trained(trained: Trained, path: Path) -> None:
    """Keep a training in a file; a stop in between leaves no half-written one."""
    states = {
        f"{snapshot.step}.{name}": part for snapshot in trained.snapshots for name, part in snapshot.state.items()
    }
    losses = torch.tensor(trained.losses, dtype=torch.float64)
    accuracy = [(snapshot.step, snapshot.accuracy) for snapshot in trained.snapshots]
    store(path, {**states, "losses": losses}, trained.settings, accuracy=accuracy)


def read_trained(settings: LanguageSettings, path: Path) -> Trained:
    """The training of these settings that `save_trained` has kept."""
    tensors, numbers = stored(path, settings)
    losses, states = tuple(tensors.pop("losses").tolist()), dict[str, dict[str, Tensor]]()
    for name, part in tensors.items():
        step, _, parameter = name.partition(".")
        states.setdefault(step, {})[parameter] = part
    snapshots = (Snapshot(step, states[str(step)], accuracy) for step, accuracy in numbers["accuracy"])
    return Trained(settings, tuple(snapshots), losses)


def checkpoints(
    trained: Trained, *, device: str | torch.device = "cpu", dtype: torch.dtype | Literal["auto"] = "auto"
) -> Iterator[tuple[int, Model]]:
    """The snapshots as models that Keyhole reads, one after another; "auto" is the float32 that they are kept in."""
    tokenizer = AutoTokenizer.from_pretrained(folder())
    for snapshot in trained.snapshots:
        hf = new_language_model(trained.settings)
        hf.load_state_dict(dict(snapshot.state))
        hf = hf.eval() if dtype == "auto" else hf.eval().to(dtype)
        model = load((hf, tokenizer), device=device)
        yield snapshot.step, replace(model, name=f"language model, seed {trained.settings.seed}, step {snapshot.step}")


def new_language_model(settings: LanguageSettings) -> Any:
    """A GPT-2 without dropout at the random start of its seed; the global random state is left as it was."""
    config = GPT2Config(**gpt2_shape(settings, len(tasks.vocabulary())))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return GPT2LMHeadModel(config)


def corpus(settings: LanguageSettings) -> Int[Tensor, "document pos"]:
    """The training documents as token ids, each after <bos> and padded at its end, in random order."""
    seed = settings.seed * 1_000_003
    n_ioi, n_induction = (int(share * settings.documents) for share in (settings.share_ioi, settings.share_induction))
    examples = tasks.ioi(n_ioi, seed) + repeats(n_induction, seed, length=settings.length)
    texts = [example.text + example.continuation for example in examples]
    texts += tasks.filler(settings.documents - len(texts), seed)
    random.Random(seed).shuffle(texts)
    return _rows(texts, settings.positions)


def accuracy(hf: Any, n: int = 200) -> dict[str, float]:
    """How often is the answer the most probable next token, in held-out prompts of each task?"""
    shares = {}
    for name, examples in held_out(n).items():
        rows = _rows([example.text for example in examples], hf.config.n_positions).to(hf.device)
        ends = (rows != PAD).sum(1) - 1
        with torch.no_grad():
            logits = hf(input_ids=rows, use_cache=False).logits[torch.arange(len(rows), device=hf.device), ends]
        answers = _rows([example.answer for example in examples], 2)[:, 1].to(hf.device)
        shares[name] = float((logits.argmax(-1) == answers).double().mean())
    return shares


def held_out(n: int, *, seed: int = 7, length: tuple[int, int] = (8, 16)) -> dict[str, list[Example]]:
    """Prompts of the two tasks that no document of any seed holds."""
    return {
        "ioi": tasks.ioi(n, seed, held_out=True),
        "induction": repeats(n, seed, length=length, held_out=True),
    }


def repeats(n: int, seed: int, *, length: tuple[int, int], held_out: bool = False) -> list[Example]:
    """Induction over the forty household things alone: few words for small heads to tell apart."""
    return tasks.induction(n, seed, words=THINGS, length=length, held_out=held_out)


def _rows(texts: Sequence[str], positions: int) -> Int[Tensor, "row pos"]:
    ids = {token: i for i, token in enumerate(tasks.vocabulary())}
    rows = [[BOS, *(ids[piece] for piece in pieces(text))] for text in texts]
    longest = max(map(len, rows))
    if longest > positions:
        raise KeyholeError(f"a text has {longest} tokens, but the model {positions} positions: give it more.")
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def _batches(rows: Int[Tensor, "document pos"], settings: LanguageSettings) -> Iterator[Int[Tensor, "batch pos"]]:
    """Endless batches, every document once per round, without the columns that are padding in all rows."""
    stream = torch.Generator().manual_seed(settings.seed)
    while True:
        order = torch.randperm(len(rows), generator=stream)
        for start in range(0, len(rows) - settings.batch + 1, settings.batch):
            batch = rows[order[start : start + settings.batch].to(rows.device)]
            yield batch[:, : int((batch != PAD).sum(1).max())]


def _step(hf: Any, optimizer: torch.optim.Optimizer, rows: Int[Tensor, "batch pos"]) -> float:
    # Padding comes after the text, where causal attention never looks: only the loss has to ignore it.
    logits: Float[Tensor, "batch pos vocab"] = hf(input_ids=rows, use_cache=False).logits
    targets = rows[:, 1:].masked_fill(rows[:, 1:] == PAD, _UNSEEN)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=_UNSEEN)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _state(hf: Any) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in hf.state_dict().items()}
