"""On which prompts is a claim tested? Its own, the same in other words, and those on which it should not hold.

own        made by a task, or given
rewrites   given; or by the task: the same wording with other words, and other wordings and orders; or, of given
           prompts: each with the words that play its roles in another prompt
negatives  given; or each prompt with another word in one role, while the answer asked about stays
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyhole.brief import brief
from keyhole.claims.records import Claim, Exchange, Suffices, TaskPrompts
from keyhole.errors import KeyholeError
from keyhole.intervene.removal import Metric
from keyhole.strict import quoted
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.catalogue import CATALOGUE, examples, like
from keyhole.tasks.example import START, Example, exchanged, reworded
from keyhole.tasks.variants import OTHERS

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

_WORDINGS = ("order", "wordings", "wording")  # choices of a task that rewrites do not keep
_END = "END"  # the token that predicts the answer: it stays where it is


class UntestableError(KeyholeError):
    """Nothing is wrong with a claim, but this model or these prompts cannot say whether it holds."""


@dataclass(frozen=True, eq=False)
class Case:
    """One prompt that ran, with its roles and what its answer is measured by."""

    __repr__ = brief

    example: Example
    run: "Run" = field(repr=False)
    roles: Mapping[str, int]  # at which token each stands
    metric: Metric
    answer: float  # the logit difference, or the answer's probability where nothing is held against it
    right: bool  # is the answer likelier than what it is held against, or than every other token?
    number: int  # of the claim's prompt that it was made from

    def at(self, role: str) -> int:
        """The token of a role, or one that stands after it: IO+1."""
        if role in self.roles:  # a task may name one S1+1
            return self.roles[role]
        name, plus, after = role.partition("+")
        if plus and not (after.isdecimal() and len(after) < 5):
            raise KeyholeError(f"{quoted(role)} names no token: write a role, or IO+1 for the token after IO.")
        known = {START: 0, **self.roles}
        if name not in known:
            several = name in self.example.roles
            reason = "is several tokens in" if several else "is no role of"
            raise KeyholeError(
                f"{quoted(name)} {reason} {quoted(self.example.text)}: there are {', '.join(sorted(known))}."
            )
        token = known[name] + int(after or 0)
        if token >= len(self.run):
            raise KeyholeError(f"{quoted(role)} would be token {token} of {len(self.run)} in this prompt.")
        return token


@dataclass(frozen=True, eq=False)
class Cases:
    """Prompts of one kind. Those that the model answers wrongly are left out, and counted."""

    __repr__ = brief

    name: str
    cases: tuple[Case, ...]
    of: int  # how many there were

    def __len__(self) -> int:
        return len(self.cases)

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)


def own_prompts(model: "Model", claim: Claim) -> list[Example]:
    """The claim's own prompts, each once."""
    if not isinstance(claim.prompts, TaskPrompts):
        prompts = list(claim.prompts)
    else:
        task = claim.prompts
        if task.task.replace("-", "_") not in CATALOGUE:
            raise KeyholeError(f"there is no task {quoted(task.task)}: there are {', '.join(CATALOGUE)}.")
        prompts = examples(task.task, model, task.n, task.seed, **task.choices)
    prompts = list({prompt.text: prompt for prompt in prompts}.values())
    if not prompts:
        raise KeyholeError("a claim needs prompts: give some, or a task.")
    return prompts


def cases_of(
    model: "Model",
    name: str,
    prompts: Sequence[Example],
    *,
    answers: Sequence[Example] | None = None,
    numbers: Sequence[int] | None = None,
) -> Cases:
    """Prompts, run; `answers`: those whose answers are asked about instead, and wrong ones then stay."""
    runs = model.run_many([prompt.text for prompt in prompts])
    numbers = range(len(prompts)) if numbers is None else numbers
    cases = []
    for prompt, run, answers_of, number in zip(prompts, runs, answers or prompts, numbers, strict=True):
        ids = answer_ids(model, answers_of)
        metric = Metric(len(run) - 1, ids.answers, ids.against)
        logits = run.logits[-1]
        value = score(metric, logits)
        right = value > 0 if ids.against else int(logits.argmax()) in ids.answers
        cases.append(Case(prompt, run, prompt.positions(run), metric, value, right, number))
    return Cases(name, tuple(case for case in cases if case.right or answers is not None), len(cases))


def score(metric: Metric, logits: "object") -> float:
    """The answer in one row of logits: a logit difference, or a probability where nothing is held against it."""
    from math import exp

    value = metric.of(logits)  # type: ignore[arg-type]
    return value if metric.against else exp(value)


# The same prompts in other words.


def rewritten(model: "Model", claim: Claim, prompts: Sequence[Example], seed: int) -> list[Cases]:
    """Rewrites that are given, or those that can be made; none is a reason not to test."""
    if claim.rewrites:
        return [cases_of(model, rewrite.name, rewrite.prompts) for rewrite in claim.rewrites]
    if isinstance(claim.prompts, TaskPrompts):
        sets = _by_task(model, claim, prompts, seed)
    else:
        sets = [_with_words_of_others(model, prompts)]
    if not any(len(cases) for cases in sets):
        raise UntestableError("no rewrites of these prompts can be made: give some, as rewrites.")
    return sets


def _by_task(model: "Model", claim: Claim, prompts: Sequence[Example], seed: int) -> list[Cases]:
    assert isinstance(claim.prompts, TaskPrompts)
    sets, task = [], claim.prompts
    if prompts[0].task in OTHERS:
        others = [like(prompt, model, 1, seed + i)[0] for i, prompt in enumerate(prompts)]
        sets.append(cases_of(model, "other words", others))
    if not isinstance(claim, Suffices):  # whose tokens stand where they do
        kept = {name: value for name, value in task.choices.items() if name not in _WORDINGS}
        known = {prompt.text for prompt in prompts}
        fresh = examples(task.task, model, task.n, task.seed + seed + 1000, **kept)
        others = list({prompt.text: prompt for prompt in fresh if prompt.text not in known}.values())
        if others:
            sets.append(cases_of(model, "fresh prompts, in any wording of the task", others))
    return sets


def _with_words_of_others(model: "Model", prompts: Sequence[Example]) -> Cases:
    """Each prompt with the words that play its roles in the next prompt in which all of them are others."""
    others = []
    for i, prompt in enumerate(prompts):
        partners = [*prompts[i + 1 :], *prompts[:i]]
        for partner in sorted(partners, key=lambda partner: partner.template != prompt.template):
            words = _words_instead(prompt, partner)
            if words is not None:
                others.append(exchanged(prompt, words))
                break
    return cases_of(model, "the words of other prompts", others)


def _words_instead(prompt: Example, partner: Example) -> dict[str, str] | None:
    """Other words in the roles of a prompt; None where there are none, or where two would become the same."""
    roles = [role for role in prompt.roles if role != _END and role in partner.roles]
    every = {prompt.word(role): partner.word(role) for role in roles}
    words = {old: new for old, new in every.items() if old != new}
    stay = {*prompt.answers, *prompt.against, *every} - set(words)
    if not words or len(set(words.values())) < len(words) or stay & set(words.values()):
        return None
    return words


# Prompts on which it should not hold.


def negatives_of(model: "Model", claim: Claim, prompts: Sequence[Example]) -> Cases:
    """Negatives that are given, or each prompt with another word in one role."""
    given = claim.negatives
    if isinstance(given, tuple):
        return cases_of(model, "the negatives given", given, numbers=[-1] * len(given))
    exchange = given or Exchange(_base(claim.exchanged) or _answers_role(prompts))
    changed = [(i, _exchanged(prompt, exchange, prompts)) for i, prompt in enumerate(prompts)]
    pairs = [(i, other) for i, other in changed if other is not None]
    if not pairs:
        raise UntestableError(
            f"every prompt has the same word as {exchange.role}, so that there are no prompts on which this should not "
            "happen: give some, or another role to exchange, as negatives."
        )
    by = f"the word of {exchange.by}" if exchange.by else "another word"
    unchanged = [prompts[i] for i, _ in pairs]
    name, others = f"{by} as {exchange.role}", [other for _, other in pairs]
    return cases_of(model, name, others, answers=unchanged, numbers=[i for i, _ in pairs])


def _base(role: str | None) -> str | None:
    return None if role is None else role.partition("+")[0]


def _answers_role(prompts: Sequence[Example]) -> str:
    """The role whose word is the answer."""
    for role in prompts[0].roles:
        if role != _END and all(role in p.roles and p.word(role) == p.answer for p in prompts):
            return role
    raise UntestableError("no role's word is the answer: say which role is exchanged in the negatives.")


def _exchanged(prompt: Example, exchange: Exchange, prompts: Sequence[Example]) -> Example | None:
    """A prompt with another word in a role: of a prompt that has another answer, if there is one."""
    if exchange.role == START:
        raise UntestableError("nothing stands instead of the first token: give negatives, or a role to exchange.")
    word = prompt.word(exchange.role)
    if exchange.by:
        other = prompt.word(exchange.by)
        return None if other == word else reworded(prompt, {exchange.role: other})
    known = [p for p in prompts if exchange.role in p.roles and p.word(exchange.role) != word]
    decided = {word.strip() for word in (*prompt.answers, *prompt.against)}
    known = [p for p in known if p.word(exchange.role) not in decided] or known
    # Where answers are the same all over, as with an answer that is a role's word, this changes nothing.
    known = [p for p in known if p.answer != prompt.answer] or known
    if not known:
        return None
    after = sum(map(ord, prompt.text)) % len(known)  # another partner for each, and the same at each call
    return reworded(prompt, {exchange.role: known[after].word(exchange.role)})
