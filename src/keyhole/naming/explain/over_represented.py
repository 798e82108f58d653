"""Which tokens are over-represented where a signal fires? The answer is a sentence that a rule can parse."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isqrt, log

import numpy as np
from jaxtyping import Bool

from keyhole.naming.explain.language import SPOTS, Clause, Distance, Spot, Word, normal, true_of
from keyhole.naming.explain.sentences import Claim, Name, render
from keyhole.naming.judge.questions import Marked, marked
from keyhole.naming.subjects.subject import Shown
from keyhole.stats import benjamini_hochberg, fisher

# Which clauses can a name have? A table says which clause is true of which pair.

_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)  # where distances may begin; they end before the next ones
_RARE = 3  # a clause that is true of fewer examples cannot be significant
_OFTEN = 24  # pairs that are drawn from each text of the background


@dataclass(frozen=True)
class Pairs:
    """Where the signal fires, and where it does not: pairs at random, and hard negatives."""

    fires: tuple[Marked, ...]
    drawn: tuple[Marked, ...]
    hard: tuple[Marked, ...]

    @property
    def every(self) -> tuple[Marked, ...]:
        """The pairs that fire, then those at random, then the hard negatives."""
        return (*self.fires, *self.drawn, *self.hard)


def pairs_of(examples: Sequence[Shown], background: Sequence[Shown], seed: int) -> Pairs:
    """One example of each text, since several examples of a text are not independent; and pairs of the background.

    Any pair of a background text is a pair at random, so more are drawn than were kept: rare words need many.
    """
    fires = {example.tokens: marked(example) for example in reversed(examples)}  # the first of each text stays
    kept = [example for example in background if example.pick == "random"]
    rng = random.Random(seed)
    texts = dict.fromkeys(example.tokens for example in kept)
    more = [_draw(tokens, rng) for tokens in texts for _ in range(_OFTEN)]
    hard = tuple(dict.fromkeys(marked(example) for example in background if example.pick != "random"))
    return Pairs(tuple(reversed(fires.values())), (*(marked(example) for example in kept), *more), hard)


def _draw(tokens: tuple[str, ...], rng: random.Random) -> Marked:
    """A visible pair, drawn uniformly."""
    number = rng.randrange(len(tokens) * (len(tokens) + 1) // 2)
    dest = (isqrt(8 * number + 1) - 1) // 2
    return Marked(tokens, dest, number - dest * (dest + 1) // 2)


def candidates(pairs: Pairs) -> tuple[list[Clause], Bool[np.ndarray, "clauses pairs"]]:
    """Clauses that are true of at least three examples, and a table of the pairs of which each is true."""
    often = Counter(chain.from_iterable(map(true_of, pairs.fires)))  # a pair has no clause twice
    clauses = [clause for clause, times in often.items() if times >= _RARE]
    rows = {clause: i for i, clause in enumerate(clauses)}
    table = np.zeros((len(clauses), len(pairs.every)), dtype=bool)
    for column, pair in enumerate(pairs.every):
        table[[rows[clause] for clause in true_of(pair) if clause in rows], column] = True
    spans = _distances(max((len(pair.tokens) for pair in pairs.fires), default=0))
    far = np.array([pair.dest - pair.src for pair in pairs.every])
    spread = [(span.low <= far) & (far <= (np.inf if span.high is None else span.high)) for span in spans]
    return [*clauses, *(Clause("src", span) for span in spans)], np.concatenate([table, np.array(spread)])


def _distances(length: int) -> list[Distance]:
    """Spans of distances between any two steps; the last step has no end."""
    starts = [step for step in _STEPS if step < length]
    ends = [*(step - 1 for step in starts[1:]), None]
    spans = [Distance(low, high) for i, low in enumerate(starts) for high in ends[i:]]
    return [span for span in spans if span != Distance(0, None)]


# What do the examples have in common that other pairs do not have? One sentence, from counts and tests.
#
# Candidates are words and kinds of dest, src and their neighbours, repetitions, places and distances. Those that
# Fisher's exact test, corrected for all candidates, finds over-represented are compared by their gain:
#
#     gain = share of examples - (share of pairs at random + share of hard negatives) / 2
#
# The first clause has the largest gain. Each further one is chosen in the same way among the pairs of which all clauses
# so far are true, until none adds enough. So the sentence may have a clause that is rarely true of random pairs, as
# long as it costs the whole sentence little. If no candidate is significant, there is no valid interpretation.

_ADDS = 0.2  # least gain of each clause, among the pairs that the clauses before leave
_NEARLY = 0.05  # gains that differ by less count as equal
_MOST_WORDS = 6  # of one list
_PER_WORD = 0.02  # least gain of each further word of a list


@dataclass(frozen=True)
class _Choice:
    """A clause that may be next: the pairs of which it is true, its gain, and its p-values."""

    clause: Clause
    true: Bool[np.ndarray, "pairs"]
    gain: float  # among the pairs that the clauses before leave
    p: float
    corrected: float


def statistics(
    examples: Sequence[Shown],
    background: Sequence[Shown],
    *,
    level: float = 0.05,
    clauses: int = 4,
    seed: int = 0,
) -> Name:
    """The sentence that best separates examples from background.

    Args:
        examples: Places where the signal fires.
        background: Places where it does not fire. All that were not picked at random count as hard negatives, so that
            examples of another signal show what separates the two.
        level: Level of significance, corrected for all candidates.
        clauses: How many clauses the sentence has, at most.
        seed: Seed of the pairs that are drawn at random from the texts.

    >>> from keyhole.naming.subjects.subject import Shown
    >>> fires = [Shown(i, (f"a{i}", "Mary", "to"), 2, 1, 1.0, 1.0, "top") for i in range(9)]
    >>> rest = [Shown(i, (f"a{i}", "Mary", "to"), 1, 0, 0.0, 0.0, "wrong src") for i in range(9)]
    >>> statistics(fires, rest).text
    'dest is "to"'
    """
    pairs = pairs_of(examples, background, seed)
    if not pairs.fires or not (pairs.drawn or pairs.hard):
        return Name(None, "statistics")
    names, table = candidates(pairs)
    left, chosen = np.ones(table.shape[1], dtype=bool), list[_Choice]()
    while len(chosen) < clauses:
        best = _best(names, table, left, pairs, level=level)
        if best is None:
            break
        chosen.append(best)
        left = left & best.true
    kept = _needed(chosen, pairs)
    if not kept:
        return Name(None, "statistics")
    return Name(render(choice.clause for choice in kept), "statistics", tuple(_claim(choice, pairs) for choice in kept))


def _gain(true: Bool[np.ndarray, "pairs"], left: Bool[np.ndarray, "pairs"], pairs: Pairs) -> float:
    """The share of examples of which a clause is true, less that of the others, among the pairs that are left.

    Hard negatives and pairs at random count equally. Where none of them is left, the gain is 0.
    """
    fires, *others = _shares(true, left, pairs)
    known = [share for share in others if share is not None]
    return fires - sum(known) / len(known) if fires is not None and known else 0.0


def _shares(
    true: Bool[np.ndarray, "pairs"], left: Bool[np.ndarray, "pairs"], pairs: Pairs
) -> tuple[float | None, float | None, float | None]:
    """The shares of examples, pairs at random and hard negatives; None: there are none."""
    n, m = len(pairs.fires), len(pairs.fires) + len(pairs.drawn)
    parts = [true[part][left[part]] for part in (slice(n), slice(n, m), slice(m, None))]
    fires, drawn, hard = (float(part.mean()) if len(part) else None for part in parts)
    return fires, drawn, hard


def _best(
    names: list[Clause],
    table: Bool[np.ndarray, "clauses pairs"],
    left: Bool[np.ndarray, "pairs"],
    pairs: Pairs,
    *,
    level: float,
) -> _Choice | None:
    """The significant clause, or list of words, with the largest gain; of nearly equal ones the rarest elsewhere.

    So the sentence says "dest is a name" rather than "a capitalised word" where their gains differ by chance alone.
    """
    n, among = len(pairs.fires), table & left
    of, of_others = int(left[:n].sum()), int(left[n:].sum())
    some, others = among[:, :n].sum(1).tolist(), among[:, n:].sum(1).tolist()
    ps = [fisher(a, of, b, of_others) if a * of_others > b * of else 1.0 for a, b in zip(some, others, strict=True)]
    corrected = benjamini_hochberg(ps)
    passing = [
        _Choice(names[i], table[i], _gain(table[i], left, pairs), ps[i], corrected[i])
        for i in range(len(names))
        if corrected[i] <= level
    ]
    lists = [words for spot in SPOTS if (words := _listed(passing, spot, left, pairs)) is not None]
    every, so_far = np.ones_like(left), _gain(left, np.ones_like(left), pairs)
    good = [
        choice
        for choice in (*passing, *lists)
        if choice.gain >= _ADDS
        and _gain(choice.true & left, every, pairs) >= so_far - _NEARLY  # the whole keeps its gain
    ]
    most = max((choice.gain for choice in good), default=0.0)
    narrow = [choice for choice in good if choice.gain >= most - _NEARLY]
    return min(narrow, key=lambda choice: (_shares(choice.true, every, pairs)[1] or 0.0, -choice.gain), default=None)


def _listed(passing: list[_Choice], spot: Spot, left: Bool[np.ndarray, "pairs"], pairs: Pairs) -> _Choice | None:
    """The words that are significant alone, as one list; its p-value is the largest of theirs."""
    words = [choice for choice in passing if choice.clause.spot == spot and isinstance(choice.clause.says, Word)]
    listed: _Choice | None = None
    for choice in sorted(words, key=lambda choice: -choice.gain):
        if listed is None:
            listed = choice
            continue
        assert isinstance(listed.clause.says, Word) and isinstance(choice.clause.says, Word)
        true = listed.true | choice.true
        gain = _gain(true, left, pairs)
        if len(listed.clause.says.words) < _MOST_WORDS and gain - listed.gain >= _PER_WORD:
            both = Clause(spot, Word(listed.clause.says.words + choice.clause.says.words))
            listed = _Choice(both, true, gain, max(listed.p, choice.p), max(listed.corrected, choice.corrected))
    return listed


def _needed(chosen: list[_Choice], pairs: Pairs) -> list[_Choice]:
    """The choices without those that later ones imply: a name is always a capitalised word."""
    kept = list(chosen)
    for choice in chosen:
        rest = [other for other in kept if other is not choice]
        if rest and _gain(choice.true, _all(rest), pairs) < _ADDS / 2:
            kept = rest
    return kept


def _all(choices: list[_Choice]) -> Bool[np.ndarray, "pairs"]:
    return np.asarray(np.logical_and.reduce([choice.true for choice in choices]))


def _claim(choice: _Choice, pairs: Pairs) -> Claim:
    n = len(pairs.fires)
    yes, no = int(choice.true[:n].sum()) + 0.5, int((~choice.true[:n]).sum()) + 0.5
    others, not_others = int(choice.true[n:].sum()) + 0.5, int((~choice.true[n:]).sum()) + 0.5
    odds = log(yes * not_others / (no * others))
    fires, drawn, hard = _shares(choice.true, np.ones_like(choice.true), pairs)
    return Claim(render([choice.clause]), fires or 0.0, drawn, hard, odds, choice.p, choice.corrected)


# Would the commonest tokens of the examples serve as a name? A control, without comparison and test.


def tokens_alone(examples: Sequence[Shown], background: Sequence[Shown] = (), *, words: int = 3) -> Name:
    """The commonest tokens at dest and at src, as a sentence.

    Args:
        examples: Places where the signal fires.
        background: Ignored: it is here because explainers are called with it.
        words: How many tokens are named for dest, and for src.

    >>> tokens_alone([Shown(0, ("a", " to", " b"), 1, 0, 1.0, 1.0, "top")]).text
    'dest is "to", and src is "a"'
    """
    if not examples:
        return Name(None, "tokens alone")
    dest = _commonest([example.tokens[example.dest] for example in examples], words)
    src = _commonest([example.tokens[example.src] for example in examples], words)
    return Name(render([Clause("dest", Word(dest)), Clause("src", Word(src))]), "tokens alone")


def _commonest(tokens: Sequence[str], words: int) -> tuple[str, ...]:
    return tuple(word for word, _ in Counter(map(normal, tokens)).most_common(words))
