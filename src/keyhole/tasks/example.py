"""What is one example of a task, and what are its tokens called?

What is one example of a task, and how are its texts and spans made?
"""

import random
import re
import string
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from keyhole.brief import Span
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

# How the organism's tokenizer cuts text: digits in pairs, "isn't" whole, words, single punctuation marks.
# Written so that Python's re and the tokenizers library read it alike.
PIECE = r"[0-9]{1,2}|[A-Za-z]+n't|[A-Za-z]+|[^\sA-Za-z0-9]"

HELD_OUT_ONE_IN = 10
_TRIES_PER_EXAMPLE = 2_000


@dataclass(frozen=True)
class Example:
    """One prompt, what should come next, and where in the prompt each actor stands.

    Roles are character spans rather than token positions, so an example serves any tokenizer.
    """

    task: str  # "ioi", "boxes", ...
    text: str  # the prompt without its answer; no trailing space
    answer: str  # the word that should come next
    against: tuple[str, ...]  # every wrong answer that the right ones are held against, the most natural one first
    answers: tuple[str, ...]  # every right answer
    roles: Mapping[str, Span]  # role -> (start, end) in text; every task has END, the predicting word
    template: str  # which wording, e.g. "ABBA-3"
    continuation: str  # how the text goes on after `text`, to the character: " Mary."
    labels: Mapping[str, str] = field(default_factory=dict)  # what to sort prompts by: {"order": "ABBA", "IO": "Mary"}

    @property
    def wrong(self) -> str | None:
        """The most natural wrong answer, if there is one."""
        return self.against[0] if self.against else None

    def word(self, role: str) -> str:
        """Which characters of the prompt play this role?

        Args:
            role: The role's name.

        >>> text, roles = fill("{name} waits", {"name": ("WHO", "Mary")})
        >>> Example("demo", text, "", (), (), roles, "", "").word("WHO")
        'Mary'
        """
        start, end = self.span(role)
        return self.text[start:end]

    def span(self, role: str) -> Span:
        """Between which characters of the prompt does a role stand?

        Args:
            role: The role's name.

        >>> text, roles = fill("{name} waits", {"name": ("WHO", "Mary")})
        >>> Example("demo", text, "", (), (), roles, "", "").span("WHO")
        (0, 4)
        """
        if role not in self.roles:
            raise KeyholeError(f"this example has no role {role!r}: it has {', '.join(self.roles)}.")
        return self.roles[role]

    def in_chat(self, model: "Model") -> "Example":
        """The prompt as a user's message in the model's chat template; run it with `bos=False`.

        Args:
            model: The model, whose chat template is used.
        """
        from keyhole.models.chat import in_chat

        text, roles = in_chat(model, self.text, self.roles)
        # A reply begins without a space.
        return replace(self, text=text, roles=roles, continuation=self.continuation.lstrip())

    def position(self, run: "Run", role: str) -> int:
        """At which token of a run of this prompt does a role stand? Refuses a role of several tokens.

        Args:
            run: A run of this prompt.
            role: The role's name.

        >>> import keyhole
        >>> text, roles = fill("{name} went to the store", {"name": ("WHO", "Mary")})
        >>> example = Example("demo", text, "", (), (), roles, "", "")
        >>> example.position(keyhole.load().run(text), "WHO")
        1
        """
        word, tokens = self.word(role), self._tokens(run)[role]
        if len(tokens) != 1:
            raise KeyholeError(f"{word!r}, the role {role}, is {len(tokens)} tokens for {run.model.name}.")
        return tokens[0]

    def positions(self, run: "Run") -> dict[str, int]:
        """At which token of a run of this prompt does each role stand? Roles of several tokens are left out.

        Args:
            run: A run of this prompt.

        >>> import keyhole
        >>> text, roles = fill("{name} went to the store", {"name": ("WHO", "Mary")})
        >>> example = Example("demo", text, "", (), (), roles, "", "")
        >>> example.positions(keyhole.load().run(text))
        {'WHO': 1, 'END': 5}
        """
        return {role: tokens[0] for role, tokens in self._tokens(run).items() if len(tokens) == 1}

    def places(self, tokens: Sequence[str]) -> dict[str, int]:
        """The same from the texts of the tokens, as circuits keep them: no model is needed.

        Args:
            tokens: The texts of the tokens.

        >>> text, roles = fill("{name} waits", {"name": ("WHO", "Mary")})
        >>> Example("demo", text, "", (), (), roles, "", "").places(("<bos>", "Mary", " waits"))
        {'WHO': 1, 'END': 2}
        """
        from keyhole.models.tokens import spans_among

        by_role = self._among(spans_among(self.text, tokens))
        return {role: at[0] for role, at in by_role.items() if len(at) == 1}

    def tokens(self, model: "Model") -> dict[str, tuple[int, ...]]:
        """Which tokens of this prompt play each role for a model? Counted from the first token of the text itself.

        Args:
            model: The model, with its tokenizer.

        >>> import keyhole
        >>> text, roles = fill("{name} went to the store", {"name": ("WHO", "Mary")})
        >>> Example("demo", text, "", (), (), roles, "", "").tokens(keyhole.load())
        {'WHO': (0,), 'END': (4,)}
        """
        from keyhole.models.tokens import text_ids, token_spans

        spans = token_spans(model, self.text, text_ids(model, self.text))
        return {role: tuple(numbers) for role, numbers in self._among(spans).items()}

    def _tokens(self, run: "Run") -> dict[str, list[int]]:
        """Which tokens of a run of this prompt play each role."""
        from keyhole.models.tokens import token_spans

        try:
            spans = token_spans(run.model, self.text, run.token_ids)
        except KeyholeError as error:
            raise KeyholeError(f"this run is of another prompt than this example: {error}") from error
        return self._among(spans)

    def _among(self, spans: list[Span | None]) -> dict[str, list[int]]:
        """Tokens by role. END predicts what comes next: of several, the last."""
        from keyhole.models.tokens import tokens_in

        by_role = {role: tokens_in(spans, *span) for role, span in self.roles.items()}
        return {role: tokens[-1:] if role == "END" else tokens for role, tokens in by_role.items()}


def fill(wording: str, slots: Mapping[str, tuple[str, str]]) -> tuple[str, dict[str, Span]]:
    """What does a wording say with its slots filled, and where did each filling land?

    `slots` maps a slot of the wording to (role, word); the spans come back under the role, with END added.

    >>> fill("{A} saw {B}", {"A": ("IO", "Mary"), "B": ("S1", "John")})
    ('Mary saw John', {'IO': (0, 4), 'S1': (9, 13), 'END': (9, 13)})
    """
    text, roles = "", {}
    for literal, slot, _, _ in string.Formatter().parse(wording):
        text += literal
        if slot is not None:
            role, word = slots[slot]
            roles[role] = (len(text), len(text) + len(word))
            text += word
    roles["END"] = last_piece(text)
    return text, roles


def reworded(example: Example, words: Mapping[str, str]) -> Example:
    """What does a prompt say with other words at some of its roles? Its answers stay as they are.

    >>> text, roles = fill("{A} saw {B}", {"A": ("WHO", "Mary"), "B": ("WHOM", "John")})
    >>> other = reworded(Example("demo", text, "", (), (), roles, "", ""), {"WHO": "Alexander"})
    >>> other.text, other.word("WHOM")
    ('Alexander saw John', 'John')
    """
    placed = sorted({example.span(role): word for role, word in words.items()}.items())

    def moved(at: int) -> int:
        return at + sum(len(word) - (end - start) for (start, end), word in placed if end <= at)

    text, done = "", 0
    for (start, end), word in placed:
        text, done = text + example.text[done:start] + word, end
    roles = {role: (moved(start), moved(end)) for role, (start, end) in example.roles.items()}
    return replace(example, text=text + example.text[done:], roles=roles)


def exchanged(example: Example, words: Mapping[str, str]) -> Example:
    """What is an example with words exchanged wherever they play a role, in its answers and labels, too?

    >>> text, roles = fill("{A} and {B} ran, {A2} and", {s: (s, w) for s, w in zip(("A", "B", "A2"), "xyx")})
    >>> example = Example("demo", text, "y", ("x",), ("y",), roles, "", " y.")
    >>> other = exchanged(example, {"x": "y", "y": "z"})
    >>> other.text, other.answer, other.against, other.continuation
    ('y and z ran, y and', 'z', ('y',), ' z.')
    """
    at = {role: words[example.word(role)] for role in example.roles if example.word(role) in words}
    old = "|".join(map(re.escape, words)) or "(?!)"  # nothing to exchange: a pattern that never fits
    return replace(
        reworded(example, at),
        answer=words.get(example.answer, example.answer),
        answers=tuple(words.get(word, word) for word in example.answers),
        against=tuple(words.get(word, word) for word in example.against),
        # A function, so that no character of a new word is read as a group reference.
        continuation=re.sub(rf"\b({old})\b", lambda match: words[match[0]], example.continuation),
        labels={name: words.get(label, label) for name, label in example.labels.items()},
    )


def pieces(text: str) -> list[str]:
    """Into which tokens does the organism cut this text?

    >>> pieces("The year 1745, isn't it?")
    ['The', 'year', '17', '45', ',', "isn't", 'it', '?']
    """
    return re.findall(PIECE, text)


def last_piece(text: str) -> Span:
    """Where is the last token of this text?"""
    *_, match = re.finditer(PIECE, text)
    return match.span()


def piece_after(text: str, span: Span) -> Span:
    """Where is the token that follows this span?"""
    match = re.compile(PIECE).search(text, span[1])
    if match is None:
        raise KeyholeError(f"nothing follows {text[span[0] : span[1]]!r} in {text!r}")
    return match.span()


def is_held_out(*combination: str) -> bool:
    """Is this combination kept out of all training text?

    One in ten is, by a hash: the same ones on every machine.

    Args:
        *combination: The words that make up the combination.

    >>> is_held_out("Mary", "John", "drink") in (True, False)
    True
    """
    return zlib.crc32("|".join(combination).encode()) % HELD_OUT_ONE_IN == 0


def collect(
    n: int,
    seed: int | random.Random,
    held_out: bool | None,
    draw: Callable[[random.Random], tuple[tuple[str, ...], Example]],
) -> list[Example]:
    """Which n examples does this seed give from one side of the held-out line?

    `draw` returns an example and the combination that decides its side; the wrong side is drawn again. With
    `held_out=None` both sides are right. A generator in place of a seed goes on where it is.
    """
    if n < 0:
        raise KeyholeError(f"there cannot be {n} examples.")
    rng = seed if isinstance(seed, random.Random) else random.Random(seed)
    examples: list[Example] = []
    for _ in range(max(n, 1) * _TRIES_PER_EXAMPLE):
        if len(examples) == n:
            return examples
        combination, example = draw(rng)
        if held_out is None or is_held_out(*combination) == held_out:
            examples.append(example)
    side = "held-out" if held_out else "training"
    raise KeyholeError(f"found {len(examples)} of {n} {side} examples: give the generator more words")


# What are the tokens of a prompt called, so that prompts of other words and lengths compare? By role and distance.

START = "START"


def place_names(places: Mapping[str, int], length: int) -> tuple[str, ...]:
    """Every token by the nearest role at or before it and the distance; before any role, from the start.

    Where several roles stand at one token, the shortest name, then the first in the alphabet, is taken.

    >>> place_names({"IO": 2, "S1": 4, "END": 6}, 7)
    ('START', 'START+1', 'IO', 'IO+1', 'S1', 'S1+1', 'END')
    """
    at: dict[int, str] = {}
    for role, place in sorted(places.items(), key=lambda item: (len(item[0]), item[0])):
        at.setdefault(place, role)
    names, role, since = [], START, 0
    for token in range(length):
        if token in at:
            role, since = at[token], token
        names.append(role if token == since else f"{role}+{token - since}")
    return tuple(names)


def place_of(name: str, names: tuple[str, ...]) -> int | None:
    """Where does a token of this name stand? None: no token of this prompt is called so.

    >>> place_of("IO+1", ("START", "IO", "IO+1")), place_of("S1", ("START", "IO"))
    (2, None)
    """
    return names.index(name) if name in names else None
