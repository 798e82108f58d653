"""Would the commonest tokens of the examples do as a name? A control: nothing is compared, nothing is tested."""

from collections import Counter
from collections.abc import Sequence

from keyhole.naming.language.clauses import Clause, Word
from keyhole.naming.language.kinds import normal
from keyhole.naming.language.sentence import render
from keyhole.naming.name import Name
from keyhole.naming.shown import Shown


def tokens_alone(examples: Sequence[Shown], background: Sequence[Shown] = (), *, words: int = 3) -> Name:
    """The commonest tokens at dest and at src, as a sentence; the background is not looked at.

    >>> one = Shown(0, ("a", " to", " b"), 1, 0, 1.0, 1.0, "top")
    >>> tokens_alone([one]).text
    'dest is "to", and src is "a"'
    """
    if not examples:
        return Name(None, "tokens alone")
    dest = _commonest([one.tokens[one.dest] for one in examples], words)
    src = _commonest([one.tokens[one.src] for one in examples], words)
    return Name(render([Clause("dest", Word(dest)), Clause("src", Word(src))]), "tokens alone")


def _commonest(tokens: Sequence[str], words: int) -> tuple[str, ...]:
    return tuple(word for word, _ in Counter(map(normal, tokens)).most_common(words))
