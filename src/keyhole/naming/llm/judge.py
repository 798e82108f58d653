"""Does a language model find a name right? Asked about one text at a time, without being told where it is from."""

import re
from functools import partial

from keyhole.errors import KeyholeError
from keyhole.naming.judging.judge import Answer, Judge
from keyhole.naming.judging.questions import Question, QuestionKind
from keyhole.naming.llm.marks import MARKS, shown_text
from keyhole.naming.llm.reply import Reply, chance
from keyhole.naming.llm.request import Request
from keyhole.naming.llm.send import send
from keyhole.naming.llm.talk import Talk

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


def llm_judges(talk: Talk) -> dict[QuestionKind, Judge]:
    """Who answers which kind of question: a model."""
    return dict.fromkeys(_ABOUT, partial(_judge, talk=talk))


def _judge(text: str, question: Question, *, talk: Talk) -> Answer:
    return read_answer(send(talk, judge_request(talk, text, question)), question)


def judge_request(talk: Talk, text: str, question: Question) -> Request:
    """The name first and the text last, so that servers can reuse what questions about one name share."""
    if question.kind not in _ABOUT:
        raise KeyholeError(f"a model is asked {', '.join(_ABOUT)} questions, not {question.kind!r}.")
    intruder = question.kind == "intruder"
    if intruder:
        parts = [f"{number}. {shown_text(one)}" for number, one in enumerate(question.texts, start=1)]
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
