"""What does a language model call a signal, and does it find a name right? Thousands of questions at once.

A model sees an example as text on one line, with dest in [[...]] and src in {{...}}. What follows dest is left out: the
head cannot see it when it looks back from there.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

from keyhole.errors import KeyholeError
from keyhole.naming.explain.sentences import NONE, Explainer, Name
from keyhole.naming.judge.judge import Answer, Judge
from keyhole.naming.judge.questions import Marked, Question, QuestionKind, marked
from keyhole.naming.llm.endpoint import Reply, Request, chance
from keyhole.naming.llm.post import send, send_all
from keyhole.naming.llm.transcript import Talk
from keyhole.naming.subjects.subject import HARD, Shown
from keyhole.progress import Progress, silent

MARKS = (
    "In each text two tokens are marked: dest stands in [[double brackets]], and src, the token that it looks back at,"
    " in {{double braces}}. Where both are the same token, it stands in [[{{both}}]]. Each text ends at dest."
)


def shown_text(pair: Marked) -> str:
    r"""The text up to dest, marked.

    >>> shown_text(Marked((" Mary", " gave", " it", "\n", " to", " him"), 4, 0))
    '{{Mary}} gave it\\n [[to]]'
    """
    src, dest = ("{{", "}}"), ("[[", "]]")
    if pair.dest == pair.src:
        parts = [_plain("".join(pair.tokens[: pair.dest])), _inside(pair.tokens[pair.dest], "[[{{", "}}]]")]
    else:
        parts = [
            _plain("".join(pair.tokens[: pair.src])),
            _inside(pair.tokens[pair.src], *src),
            _plain("".join(pair.tokens[pair.src + 1 : pair.dest])),
            _inside(pair.tokens[pair.dest], *dest),
        ]
    return "".join(parts).strip()


def _inside(token: str, opening: str, closing: str) -> str:
    """Marks stand at the word, after its space; a token of spaces alone stays visible."""
    word = token.strip(" ")
    if not word:
        return f"{opening}{token}{closing}"
    before, _, after = token.partition(word)
    return f"{before}{opening}{_plain(word)}{closing}{after}"


def _plain(text: str) -> str:
    """A text's own brackets mark nothing, and its lines do not end the line."""
    for mark in ("[", "]", "{", "}"):
        while mark * 2 in text:
            text = text.replace(mark * 2, f"{mark} {mark}")
    return text.replace("\r", "\\r").replace("\n", "\\n")


# What does a language model call a signal? It sees where it fires and where it does not, and says one sentence.

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


def llm_explainer(talk: Talk, progress: Progress = silent) -> Explainer:
    """An explainer that asks a model.

    Args:
        talk: The conversation, in whose transcript all answers are kept.
        progress: Called with the number of requests answered and their total.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.naming.llm import Endpoint, Talk, open_transcript
    >>> with TemporaryDirectory() as folder, open_transcript(f"{folder}/names.jsonl") as transcript:
    ...     explainer = llm_explainer(Talk(Endpoint("http://localhost:8000/v1", "qwen"), transcript))
    ...     print(explainer([], []).text)
    None
    """
    return _Explainer(talk, progress)


@dataclass(frozen=True)
class _Explainer:
    talk: Talk
    progress: Progress

    def ahead(self, questions: Sequence[tuple[Sequence[Shown], Sequence[Shown]]]) -> None:
        requests = [explain_request(self.talk, fires, background) for fires, background in questions if fires]
        send_all(self.talk, requests, progress=self.progress)

    def __call__(self, fires: Sequence[Shown], background: Sequence[Shown]) -> Name:
        text = read_name(send(self.talk, explain_request(self.talk, fires, background))) if fires else None
        return Name(text, self.talk.endpoint.model)


def explain_request(talk: Talk, fires: Sequence[Shown], background: Sequence[Shown]) -> Request:
    """The question; the largest values first, and hard negatives of each kind in turn before any at random."""
    amounts = talk.prompting
    top = sorted(fires, key=lambda shown: -shown.value)[: amounts.examples]
    parts = ["The signal fires for these pairs:", *_listed(top)]
    others = _others(background, talk.seed)[: amounts.negatives]
    if others:
        parts += ["", "It does not fire for these pairs, although some of them look alike:", *_listed(others)]
    user = "\n".join([*parts, "", _TASK])
    return Request(talk.endpoint.model, _SYSTEM, user, amounts.name_tokens, seed=talk.seed)


def _others(background: Sequence[Shown], seed: int) -> list[Shown]:
    order = list(background)
    random.Random(seed).shuffle(order)
    kinds = [[shown for shown in order if shown.pick == pick] for pick in HARD]
    hard = [shown for row in zip_longest(*kinds) for shown in row if shown is not None]
    return [*hard, *(shown for shown in order if shown.pick not in HARD)]


def _listed(examples: Sequence[Shown]) -> list[str]:
    return [f"{number}. {shown_text(marked(shown))}" for number, shown in enumerate(examples, start=1)]


def read_name(reply: Reply) -> str | None:
    r"""The last labelled line; None: no valid interpretation, or none that was finished.

    >>> read_name(Reply("answered", "The names repeat.\n**PATTERN:** src is a name"))
    'src is a name'
    """
    if reply.status != "answered":
        return None
    labelled = [match[1] for line in reply.text.splitlines() if (match := _LINE.match(line.strip()))]
    text = _unquoted(" ".join(labelled[-1].strip("<> ").split())) if labelled else ""
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


# Does a language model find a name right? Asked about one text at a time, without being told where it is from.

_WORD = re.compile(r"\A[\W_]*(yes|no)\b", re.IGNORECASE)
_BOTH = {"yes": re.compile(r"\bno\b", re.IGNORECASE), "no": re.compile(r"\byes\b", re.IGNORECASE)}
_NUMBER = re.compile(r"\A[\W_]*(?:text|number|answer)?[\W_]*(\d+)[\W_]*\Z", re.IGNORECASE)

_ABOUT: dict[QuestionKind, str] = {
    "detection": "You are given a rule about pairs of tokens, and one text. Say whether the marked pair obeys the rule:"
    " everything that the rule says of dest, of src and of how they relate must be true.",
    "fuzzing": "You are given a rule about pairs of tokens, and one text. The marks may stand at the pair that the rule"
    " is about, or at two other tokens of the same text. Say whether they stand where the rule wants them.",
    "intruder": "You are given five texts. In four of them the marked pairs have something in common: what dest is,"
    " what src is, or how they relate. Say which one does not belong.",
}
_WANT: dict[QuestionKind, str] = {
    "detection": "Does the marked pair obey the rule? Answer with one word, yes or no.",
    "fuzzing": "Do the marks stand at the right pair? Answer with one word, yes or no.",
    "intruder": "Which text does not belong? Answer with its number alone.",
}


def llm_judges(talk: Talk, progress: Progress = silent) -> dict[QuestionKind, Judge]:
    """Judges that ask a model, by kind of question.

    Args:
        talk: The conversation, in whose transcript all answers are kept.
        progress: Called with the number of requests answered and their total.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.naming.llm import Endpoint, Talk, open_transcript
    >>> with TemporaryDirectory() as folder, open_transcript(f"{folder}/names.jsonl") as transcript:
    ...     sorted(llm_judges(Talk(Endpoint("http://localhost:8000/v1", "qwen"), transcript)))
    ['detection', 'fuzzing', 'intruder']
    """
    return dict.fromkeys(_ABOUT, _Judge(talk, progress))


@dataclass(frozen=True)
class _Judge:
    talk: Talk
    progress: Progress

    def ahead(self, questions: Sequence[tuple[str, Question]]) -> None:
        requests = [judge_request(self.talk, text, question) for text, question in questions]
        send_all(self.talk, requests, progress=self.progress)

    def __call__(self, text: str, question: Question) -> Answer:
        return read_answer(send(self.talk, judge_request(self.talk, text, question)), question)


def judge_request(talk: Talk, text: str, question: Question) -> Request:
    """The name first and the text last, so that servers can reuse what questions about one name share."""
    if question.kind not in _ABOUT:
        raise KeyholeError(f"a model is asked {', '.join(_ABOUT)} questions, not {question.kind!r}.")
    intruder = question.kind == "intruder"
    if intruder:
        parts = [f"{number}. {shown_text(pair)}" for number, pair in enumerate(question.texts, start=1)]
    else:
        parts = [f"Rule: {' '.join(text.split())}", f"Text: {shown_text(question.texts[0])}"]
    system = f"{_ABOUT[question.kind]} {MARKS}"
    user = "\n".join([*parts, "", _WANT[question.kind]])
    return Request(
        talk.endpoint.model, system, user, talk.prompting.judge_tokens, logprobs=not intruder, seed=talk.seed
    )


def read_answer(reply: Reply, question: Question) -> Answer:
    """Yes or no, or a number; anything else is no answer, and never a right one."""
    if reply.status not in ("answered", "unfinished"):  # one word needs no end
        return Answer()
    if question.kind == "intruder":
        number = _NUMBER.match(reply.text)
        chosen = int(number[1]) - 1 if number and reply.status == "answered" else -1
        return Answer(choice=chosen) if 0 <= chosen < len(question.texts) else Answer()
    word = _WORD.match(reply.text)
    if word is None or _BOTH[word[1].lower()].search(reply.text):
        return Answer()
    return Answer(word[1].lower() == "yes", chance(reply.likely, "yes", "no"))


# What does it cost to name and judge with a model, and how is it done? In two phases: names, then all questions.
#
#     with open_transcript("names.jsonl") as transcript:
#         talk = Talk(Endpoint("http://localhost:8000/v1", "qwen"), transcript)
#         naming = lambda explainer, judges: name_signals(examples, explainer, judges)
#         print(estimate(talk, naming))
#         print(with_model(talk, naming))

T = TypeVar("T")
Naming = Callable[[Explainer, Mapping[QuestionKind, Judge]], T]  # whatever is done with an explainer and judges

# stands for a name that is not known yet, in an estimate; as long as one
_PENDING = "(pending) dest is a word of some kind, and src is another one that stands in some relation to it, number"


@dataclass(frozen=True)
class Price:
    """Of a million tokens, in any currency."""

    tokens_in: float
    tokens_out: float

    def __post_init__(self) -> None:
        if not (self.tokens_in >= 0 and self.tokens_out >= 0):
            raise KeyholeError("prices of tokens are not negative.")


@dataclass(frozen=True)
class Cost:
    """What the requests that are still to be sent would cost."""

    requests: int
    known: int  # answered before: they cost nothing
    tokens_in: int  # about: counted without the model's tokenizer
    tokens_out: int  # at most
    price: float | None  # at most, as far as the tokens are counted rightly; None: no price was given

    def __str__(self) -> str:
        size = f"{self.requests:,} requests, about {self.tokens_in:,} tokens in, at most {self.tokens_out:,} out"
        known = f" ({self.known:,} more are answered)" if self.known else ""
        return size + known + ("" if self.price is None else f": at most about {self.price:.2f}")


@dataclass
class _Notes:
    """Which requests would be sent? Those that the transcript lacks, also about names that are not known yet."""

    talk: Talk
    wanted: dict[str, Request] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    names: int = 0

    def explain(self, fires: Sequence[Shown], background: Sequence[Shown]) -> Name:
        if not fires or self.has(explain_request(self.talk, fires, background)):
            return llm_explainer(self.talk)(fires, background)
        self.names += 1
        return Name(f"{_PENDING} {self.names}", self.talk.endpoint.model)

    def judge(self, text: str, question: Question) -> Answer:
        self.has(judge_request(self.talk, text, question))
        return Answer()

    def has(self, request: Request) -> bool:
        if self.talk.known(request) is not None:
            self.known.add(request.digest)
            return True
        self.wanted[request.digest] = request
        return False


def estimate(talk: Talk, naming: Naming[object], price: Price | None = None) -> Cost:
    """What would it cost to go on from the transcript? Nothing is sent. Unknown names are assumed to be long.

    Args:
        talk: The conversation.
        naming: The work: called with an explainer and judges by kind of question.
        price: Of a million tokens. Default: tokens are counted, and no price is computed.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.naming.llm import Endpoint, Talk, open_transcript
    >>> with TemporaryDirectory() as folder, open_transcript(f"{folder}/names.jsonl") as transcript:
    ...     talk = Talk(Endpoint("http://localhost:8000/v1", "qwen"), transcript)
    ...     print(estimate(talk, lambda explainer, judges: None).requests)
    0
    """
    notes = _Notes(talk)
    naming(notes.explain, dict.fromkeys(_ABOUT, notes.judge))
    wanted = notes.wanted.values()
    into, out = sum(request.tokens for request in wanted), sum(request.max_tokens for request in wanted)
    money = None if price is None else (into * price.tokens_in + out * price.tokens_out) / 1e6
    return Cost(len(wanted), len(notes.known), into, out, money)


def with_model(talk: Talk, naming: Naming[T], *, progress: Progress = silent) -> T:
    """The result with the model's answers; requests that the transcript does not have are sent.

    Args:
        talk: The conversation.
        naming: The work: called with an explainer and judges by kind of question.
        progress: Called with the number of requests answered and their total.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.naming.llm import Endpoint, Talk, open_transcript
    >>> with TemporaryDirectory() as folder, open_transcript(f"{folder}/names.jsonl") as transcript:
    ...     talk = Talk(Endpoint("http://localhost:8000/v1", "qwen"), transcript)
    ...     with_model(talk, lambda explainer, judges: sorted(judges))
    ['detection', 'fuzzing', 'intruder']
    """
    return naming(llm_explainer(talk, progress), llm_judges(talk, progress))
