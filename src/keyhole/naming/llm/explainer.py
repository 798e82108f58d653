"""What does a language model call a signal? It sees where it fires and where it does not, and says one sentence."""

import random
import re
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

from keyhole.naming.judging.questions import marked
from keyhole.naming.llm.marks import MARKS, shown_text
from keyhole.naming.llm.reply import Reply
from keyhole.naming.llm.request import Request
from keyhole.naming.llm.send import send
from keyhole.naming.llm.talk import Talk
from keyhole.naming.name import NONE, Explainer, Name
from keyhole.naming.shown import HARD, Shown

LABEL = "PATTERN:"
_LINE = re.compile(r"^[\W_]*pattern[*_]*:[*_ \t]*(.*?)[*_ \t]*$", re.IGNORECASE)
_LONGEST = 400  # characters of a name; more is no sentence

_SYSTEM = (
    "You find out what one signal inside a language model's attention head responds to. " + MARKS + " You are exact,"
    " brief, and say so when there is nothing to be found."
)
_TASK = f"""What sets the pairs that fire apart from those that do not? Look at which words, or which kind of words, \
dest and src are, at what stands beside them, and at how they relate: in grammar, meaning, order or distance. Write \
three lines and nothing else. On the first, what most of the dests that fire are; on the second, what most of their \
srcs are; on the third, one short rule of both, by which somebody could tell for a new text whether its marked pair \
fires. Speak of dest and src alone, not of lists or single texts. If no rule fits, the third line is \
"{LABEL} {NONE}".
DEST: ...
SRC: ...
{LABEL} ..."""


def llm_explainer(talk: Talk) -> Explainer:
    """An explainer that asks a model."""
    return partial(_explain, talk=talk)


def _explain(fires: Sequence[Shown], background: Sequence[Shown], *, talk: Talk) -> Name:
    text = read_name(send(talk, explain_request(talk, fires, background))) if fires else None
    return Name(text, talk.endpoint.model)


def explain_request(talk: Talk, fires: Sequence[Shown], background: Sequence[Shown]) -> Request:
    """The question; the largest values first, and hard negatives of each kind in turn before any at random."""
    much = talk.prompting
    top = sorted(fires, key=lambda one: -one.value)[: much.examples]
    parts = ["The signal fires for these pairs:", *_listed(top)]
    others = _others(background, talk.seed)[: much.negatives]
    if others:
        parts += ["", "It does not fire for these pairs, although some of them look alike:", *_listed(others)]
    user = "\n".join([*parts, "", _TASK])
    return Request(talk.endpoint.model, _SYSTEM, user, much.name_tokens, seed=talk.seed)


def _others(background: Sequence[Shown], seed: int) -> list[Shown]:
    order = list(background)
    random.Random(seed).shuffle(order)
    kinds = [[one for one in order if one.pick == pick] for pick in HARD]
    hard = [one for row in zip_longest(*kinds) for one in row if one is not None]
    return [*hard, *(one for one in order if one.pick not in HARD)]


def _listed(shown: Sequence[Shown]) -> list[str]:
    return [f"{number}. {shown_text(marked(one))}" for number, one in enumerate(shown, start=1)]


def read_name(reply: Reply) -> str | None:
    r"""The last labelled line; None: no valid interpretation, or none that was finished.

    >>> read_name(Reply("answered", "The names repeat.\n**PATTERN:** src is a name"))
    'src is a name'
    """
    if reply.status != "answered":
        return None
    found = [match[1] for line in reply.text.splitlines() if (match := _LINE.match(line.strip()))]
    text = _unquoted(" ".join(found[-1].strip("<> ").split())) if found else ""
    if not text or len(text) > _LONGEST or NONE in text.lower() or not re.search(r"\w", text):
        return None
    return text


def _unquoted(text: str) -> str:
    """Without the quotation marks around it; those of a token that it ends with stay.

    >>> _unquoted('"a name"'), _unquoted('src is "the"'), _unquoted('"to" or "for"')
    ('a name', 'src is "the"', '"to" or "for"')
    """
    quote = text[:1]
    return text.strip(f"{quote} ") if quote in ("'", '"') and text.endswith(quote) and text.count(quote) == 2 else text
