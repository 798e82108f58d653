"""How are published results on IOI prompts repeated on a model? Its heads by role, shared by many figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from keyhole.errors import KeyholeError
from keyhole.lab.emergence_roles import Role, find_roles
from keyhole.lab.job import Job, load_model
from keyhole.lab.outcome import Progress, Verdict
from keyhole.lab.sparse import Head, SparseStudy, matched_text, sparse_study
from keyhole.models.model import Model
from keyhole.models.prompts import encode
from keyhole.models.spans import token_spans, tokens_in
from keyhole.tasks import filler, ioi
from keyhole.tasks.example import Example

ROLES = (
    Role("S-inhibition", "END", "S2"),
    Role("name mover", "END", "IO"),
    Role("induction", "S2", "S1+1"),
    Role("duplicate token", "S2", "S1"),
    Role("previous token", "S1+1", "S1"),
)
_GPT2: dict[str, tuple[Head, ...]] = {  # the heads of the paper's figures
    "S-inhibition": ((8, 6),),
    "name mover": ((9, 9), (10, 0), (9, 6)),
    "duplicate token": ((3, 0),),
    "previous token": ((4, 11),),
}
_ACTORS = ("IO", "S1", "S1+1", "S2", "END")


@dataclass(frozen=True)
class Asked:
    """What a study depends on; who watches it does not matter."""

    model: str | None
    device: str | None
    quick: bool
    seed: int
    progress: Progress = field(compare=False, repr=False)


@dataclass(frozen=True)
class Measured:
    """IOI prompts on one model: its heads by role, and every head's slices there and in unrelated text."""

    model: Model
    examples: tuple[Example, ...]
    roles: dict[str, tuple[Head, ...]]
    ioi: SparseStudy
    unrelated: SparseStudy

    def heads(self, most: int = 4) -> list[Head]:
        """Heads of different roles first, then their seconds."""
        ranks = range(max(map(len, self.roles.values()), default=0))
        found = dict.fromkeys(heads[i] for i in ranks for heads in self.roles.values() if i < len(heads))
        return [head for head in found if len(self.ioi.of(head)) >= 2][:most]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with prompts and heads to trace; one object per job's settings, so that it can stand for them."""

    model: Model
    examples: tuple[Example, ...]
    roles: dict[str, tuple[Head, ...]]
    threshold: float  # a weight that fires
    progress: Progress

    def role(self, name: str) -> tuple[Head, ...]:
        """The heads of a role, which must be there."""
        if name not in self.roles:
            raise KeyholeError(f"no head of {self.model.name} is a {name}: choose a model that solves IOI prompts.")
        return self.roles[name]


def is_gpt2(model: str | None) -> bool:
    """Is this the published model?"""
    return model is not None and model.rstrip("/").rpartition("/")[2].lower() in ("gpt2", "gpt2-small")


def judged(job: Job, holds: Sequence[bool]) -> Verdict:
    """Another model, with half of what was published of GPT-2, shows a part of it, no more; nor does it refute it."""
    if is_gpt2(job.model):
        return "reproduced" if all(holds) else "partly" if any(holds) else "not"
    return "partly" if holds and 2 * sum(holds) >= len(holds) else "needs a model"


def stood_in(job: Job) -> str:
    """Which model stood in for GPT-2?"""
    if is_gpt2(job.model):
        return ""
    whose = job.model or "The built-in organism (4 layers of 8 heads with 16 channels each)"
    return f"{whose} stood in for GPT-2 small."


def single_tokens(model: Model, n: int, seed: int) -> tuple[Example, ...]:
    """IOI prompts in which every actor is one token of this model."""
    kept = []
    for example in ioi(4 * n, seed, held_out=True):
        spans = token_spans(model, example.text, encode(model, example.text, None).ids)
        if all(len(tokens_in(spans, *example.roles[role])) == 1 for role in _ACTORS):
            kept.append(example)
        if len(kept) == n:
            return tuple(kept)
    raise KeyholeError(f"only {len(kept)} of {4 * n} IOI prompts have names of one token in {model.name}.")


def heads_by_role(source: str | None, model: Model, examples: Sequence[Example]) -> dict[str, tuple[Head, ...]]:
    """The published heads of GPT-2; of any other model, those that look where the roles do."""
    if is_gpt2(source):
        return dict(_GPT2)
    found: dict[str, tuple[Head, ...]] = {}
    for one in find_roles(model, examples[:32], ROLES, heads=3, threshold=0.2, required=False):
        found[one.place.role] = (*found.get(one.place.role, ()), one.place.head)
    if not found:
        raise KeyholeError(f"no head of {model.name} plays a role in IOI prompts: choose a model that solves them.")
    return found


def measured(job: Job) -> Measured:
    """The study of a job's model, made once for all figures."""
    return _measured(Asked(job.model, job.device, job.quick, job.seed, job.progress))


@lru_cache(maxsize=1)
def _measured(asked: Asked) -> Measured:
    model = load_model(asked.model, asked.device)
    n = 8 if asked.quick else 256
    examples = single_tokens(model, n, asked.seed)
    texts = [one.text for one in examples]
    others = matched_text(model, filler(8 * n, seed=asked.seed + 1), texts)
    draws = 2 if asked.quick else 8
    one = sparse_study(model, texts, name="IOI", draws=draws, progress=lambda d, t: asked.progress(d, 2 * t))
    two = sparse_study(
        model, others, name="unrelated text", draws=draws, progress=lambda d, t: asked.progress(t + d, 2 * t)
    )
    return Measured(model, examples, heads_by_role(asked.model, model, examples), one, two)


def subject(job: Job) -> Subject:
    """The model of a job with its prompts, loaded once for all figures."""
    return _subject(Asked(job.model, job.device, job.quick, job.seed, job.progress))


@lru_cache(maxsize=1)
def _subject(asked: Asked) -> Subject:
    model = load_model(asked.model, asked.device)
    examples = single_tokens(model, 4 if asked.quick else 128, asked.seed)
    threshold = 0.5 if is_gpt2(asked.model) else 0.25  # few name movers of small models give half of their attention
    return Subject(model, examples, heads_by_role(asked.model, model, examples), threshold, asked.progress)
