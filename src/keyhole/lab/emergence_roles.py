"""Which heads play which role? Found by where a model's heads look, or known from the literature."""

import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.lab.emergence import Place
from keyhole.models.load import load
from keyhole.models.model import Model
from keyhole.models.precision import exact_matmul
from keyhole.tasks.example import Example


@dataclass(frozen=True)
class Role:
    """What a head is for: from the token `dest` of a task it looks at the token `src`."""

    name: str
    dest: str
    src: str
    task: str = "ioi"


ROLES: tuple[Role, ...] = (
    Role("previous token", "B", "A", "induction"),
    Role("induction", "END", "B", "induction"),
    Role("duplicate token", "S2", "S1"),
    Role("induction in ioi", "S2", "S1+1"),
    Role("S-inhibition", "END", "S2"),
    Role("name mover", "END", "IO"),
)


@dataclass(frozen=True)
class Played:
    """A head in a role, and how much of its attention it gives to it."""

    place: Place
    attention: float  # mean over the prompts


def find_roles(
    model: Model,
    prompts: Sequence[Example],
    roles: Sequence[Role] = ROLES,
    *,
    heads: int = 1,
    threshold: float = 0.3,
    required: bool = True,
) -> list[Played]:
    """Which heads of a (finished) model play these roles? Up to `heads` a role, most attention first.

    A head plays a role if its mean attention from dest to src is at least `threshold`. A role without any is refused,
    or left out where `required` is False: small models often do a task without some of them.
    """
    if heads < 1:
        raise KeyholeError(f"{heads} heads a role were asked for: give one or more.")
    found: list[Played] = []
    for role in roles:
        looks = role_attention(model, prompts, role)
        best = sorted(looks.flatten().tolist(), reverse=True)
        if best[0] < threshold and required:
            raise KeyholeError(
                f"no head of {model.name} plays the role {role.name!r}: from {role.dest} to {role.src} the best one "
                f"gives {best[0]:.2f} of its attention, less than {threshold}. Leave the role out or lower threshold."
            )
        for index in looks.flatten().argsort(descending=True, stable=True)[:heads].tolist():
            row, head = divmod(index, looks.shape[1])
            if float(looks[row, head]) >= threshold:
                place = Place(role.name, (model.attention_layers[row], head), role.dest, role.src, role.task)
                found.append(Played(place, float(looks[row, head])))
    return found


def role_attention(model: Model, prompts: Sequence[Example], role: Role) -> Float[Tensor, "layer head"]:
    """How much attention does each head give to a role, on average over the prompts of its task?"""
    chosen = [example for example in prompts if example.task == role.task]
    if not chosen:
        raise KeyholeError(f"the role {role.name!r} needs prompts of the task {role.task!r}: give some.")
    heads, looks = range(model.dims.heads), []
    for example, run in zip(chosen, model.run_many([example.text for example in chosen]), strict=True):
        dest, src = example.position(run, role.dest), example.position(run, role.src)
        with exact_matmul():
            rows = [run.layer(layer).weights(heads, [dest])[:, 0, src] for layer in model.attention_layers]
        looks.append(torch.stack(rows).double().cpu())
    return torch.stack(looks).mean(0)


def bystanders(model: Model, played: Sequence[Played], *, seed: int = 0) -> list[Place]:
    """The same places seen by heads without a role: does sparsity come with the role, or with any training?

    Each head with a role is given a random partner among those that play none.
    """
    busy = {one.place.head for one in played}
    idle = [(layer, head) for layer in model.attention_layers for head in range(model.dims.heads)]
    idle = [head for head in idle if head not in busy]
    if not idle:
        raise KeyholeError(f"every head of {model.name} plays a role, so none can stand by: raise the threshold.")
    rng = random.Random(seed)
    pairs: dict[tuple[str, tuple[int, int]], Place] = {}
    for one in played:
        partner = rng.choice(idle)
        pairs[one.place.role, partner] = replace(one.place, head=partner)
    return list(pairs.values())


@dataclass(frozen=True)
class Preset:
    """A published study of a model with public checkpoints: prompt, places, and the steps that were kept."""

    model: str  # its name on the hub
    prompt: Example
    places: tuple[Place, ...]
    steps: tuple[int, ...]

    def revision(self, step: int) -> str:
        """What the hub calls the checkpoint of a step."""
        return f"step{step}"


def hub_checkpoints(
    preset: Preset, steps: Sequence[int] | None = None, *, device: str | torch.device | None = None
) -> Iterator[tuple[int, Model]]:
    """The checkpoints of a preset, one at a time: each is freed before the next is loaded."""
    steps = preset.steps if steps is None else steps
    unknown = sorted(set(steps) - set(preset.steps))
    if unknown:
        raise KeyholeError(
            f"{preset.model} has no checkpoint of step {unknown[0]}: choose from {preset.steps[0]}, "
            f"{preset.steps[1]}, ..., {preset.steps[-1]}."
        )
    for step in steps:
        yield step, _load(preset, step, device)
        gc.collect()  # captured modules refer to each other, so that the last model would linger


def _load(preset: Preset, step: int, device: str | torch.device | None) -> Model:
    try:
        return load(preset.model, revision=preset.revision(step), device=device)
    except KeyholeError as error:
        raise KeyholeError(
            f"the checkpoint {preset.revision(step)} of {preset.model} cannot be had: {error} Fetch it where the hub "
            f"can be reached (hf download {preset.model} --revision {preset.revision(step)}), or train a small model "
            "with keyhole.lab.language."
        ) from error


def _pythia_prompt() -> Example:
    text = "Then, Simon and Andrew were working at the restaurant. Simon decided to give a basketball to"
    words = {"S1": "Simon", "S1+1": "and", "IO": "Andrew"}
    roles = {role: (text.index(word), text.index(word) + len(word)) for role, word in words.items()}
    roles |= {"S2": (text.rindex("Simon"), text.rindex("Simon") + 5), "END": (len(text) - 2, len(text))}
    return Example("ioi", text, "Andrew", "Simon", ("Andrew",), roles, "BABA-1", " Andrew.")


_TABLE_2: tuple[tuple[str, tuple[tuple[int, int], ...], str, str], ...] = (
    ("previous token", ((2, 6),), "S1+1", "S1"),
    ("induction", ((4, 11), (4, 6), (5, 0)), "S2", "S1+1"),
    ("name mover", ((10, 7), (9, 4), (8, 2), (8, 10)), "END", "IO"),
    ("S-inhibition", ((7, 9), (6, 6), (7, 2)), "END", "S2"),
    ("copy suppression", ((8, 9),), "END", "S2"),
)

# Heads and token pairs of the paper's Table 2, from the circuit of Tigges et al. (2024).
PYTHIA_160M = Preset(
    model="EleutherAI/pythia-160m",
    prompt=_pythia_prompt(),
    places=tuple(Place(role, head, dest, src) for role, heads, dest, src in _TABLE_2 for head in heads),
    steps=tuple(range(1000, 144_000, 1000)),
)
