"""What would it have said? The answer beside the one with edits: words, probabilities, and where heads looked."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from keyhole.brief import Head, head_name
from keyhole.edits.controls import control, with_factor
from keyhole.edits.files import plain
from keyhole.edits.records import Edit
from keyhole.generation.generated import Generated
from keyhole.generation.writing import Show, generate
from keyhole.models.tokens import Prompt, token_texts
from keyhole.report.report import Report, Reported, Section, Table
from keyhole.settings.fields import chosen
from keyhole.settings.measuring import GenerateOptions, GenerateSettings

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.progress import Progress

_HEADS = 5  # heads that are listed


@dataclass(frozen=True)
class TokenBeside:
    """One token of the plain answer, and what the edited model would have written in its place."""

    text: str
    before: float  # its probability
    after: float  # with the edits, after the same tokens
    instead: str  # the likeliest token with the edits
    kl: float  # of the edited distribution from the plain one, in nats


@dataclass(frozen=True)
class HeadMoved:
    """How far a head looked elsewhere while the plain answer was written."""

    head: Head
    distance: float  # share of its attention that lies elsewhere, a mean over the answer's tokens
    edited: bool


@dataclass(frozen=True)
class Control:
    """Another edit of the same size."""

    name: str  # random channels, random heads
    text: str  # the answer with it
    before: float  # probability of the plain answer's first token
    after: float


@dataclass(frozen=True)
class Beside(Reported):
    """A model's answer, and its answer with edits."""

    edits: tuple[Edit, ...]
    original: Generated
    edited: Generated
    tokens: tuple[TokenBeside, ...]  # of the original answer
    heads: tuple[HeadMoved, ...]  # those that moved most
    controls: tuple[Control, ...] = field(default=())

    @property
    def changed(self) -> bool:
        """Is the edited text another one?"""
        return self.original.text != self.edited.text

    def report(self) -> Report:
        """What it says."""
        verdict = "The edits change the answer." if self.changed else "The answer is the same with the edits."
        answers = Table(
            ("", "answer", "why it ended"),
            [
                ("without", self.original.text, self.original.reason),
                ("with edits", self.edited.text, self.edited.reason),
            ],
        )
        tokens = Table(
            (">at", "token", ">without", ">with", "likeliest with edits", ">KL"),
            [(str(i), repr(t.text), t.before, t.after, repr(t.instead), t.kl) for i, t in enumerate(self.tokens)],
        )
        heads = Table(
            ("head", ">attention that moved", "edited"),
            [(head_name(h.head), h.distance, "yes" if h.edited else "") for h in self.heads],
        )
        controls = Table(
            ("control", ">first token without", ">with", "answer"),
            [(c.name, c.before, c.after, c.text) for c in self.controls],
        )
        return Report(
            title="What would it have said?",
            summary=verdict,
            sections=[
                Section("Edits", ["\n\n".join(map(str, self.edits))]),
                Section("Answers", [answers]),
                Section("Token by token, after the same words", [tokens]),
                Section("Heads that looked elsewhere", [heads]),
                Section("Controls: edits of the same size", [controls]),
            ],
            table=tokens,
        )

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "edits": [plain(edit) for edit in self.edits],
            "original": self.original.record(),
            "edited": self.edited.record(),
            "tokens": [asdict(token) for token in self.tokens],
            "heads": [asdict(head) for head in self.heads],
            "controls": [asdict(control) for control in self.controls],
        }


def beside(
    model: "Model",
    prompt: Prompt,
    edits: Sequence[Edit],
    *,
    controls: int = 0,
    bos: bool | None = None,
    settings: GenerateSettings | None = None,
    progress: "Progress | None" = None,
    **options: Unpack[GenerateOptions],
) -> Beside:
    """What would the model have said with edits? Its own answer and the edited one, side by side.

    Args:
        model: The model.
        prompt: As `Model.generate` takes it.
        edits: What is edited.
        controls: How many edits of the same size to compare with: of random channels of the same heads, or where no
            channels are named of random heads of the same layers. Edits of MLPs alone have none.
        bos: As `Model.run` takes it.
        settings: How answers are written: a `GenerateSettings`, whose fields are the choices below.
        progress: Called with the number of tokens written and how many there are at most, in all answers.
        **options: Choices by name, as `Model.generate` takes them.

    >>> import keyhole
    >>> from keyhole.edits import ChannelEdit
    >>> edit = ChannelEdit(head=(3, 6), channels=(0,))
    >>> answers = beside(keyhole.load(), "When Mary and John", [edit], max_new_tokens=2)
    >>> answers.changed, len(answers.tokens)
    (False, 2)
    """
    how = chosen(settings, GenerateSettings, options)
    shows = _counted(progress, how.max_new_tokens, 2 + controls)
    original = generate(model, prompt, settings=how, bos=bos, show=shows(0))
    edited = generate(model, prompt, settings=how, bos=bos, edits=edits, show=shows(1))
    same_words = original.run.with_edits(edits) if edits else original.run
    drawn = []
    for draw in range(controls):
        if (drawing := control(model, edits, draw)) is None:
            break
        name, others = drawing
        other = generate(model, prompt, settings=how, bos=bos, edits=others, show=shows(2 + draw))
        after = other.before(0).logits[-1].double().softmax(-1)[original.tokens[0].id]
        drawn.append(Control(name, other.text, original.tokens[0].probability, float(after)))
    return Beside(
        tuple(edits),
        original,
        edited,
        _tokens(original, same_words),
        _moved(original, same_words, edits),
        tuple(drawn),
    )


def _counted(progress: "Progress | None", most: int, answers: int) -> Callable[[int], Show | None]:
    """What watches each answer as it is written: an answer that ends early counts as whole once the next begins."""

    def show(answer: int) -> Show | None:
        if progress is None:
            return None
        return lambda piece: progress(answer * most + piece.index + 1, answers * most)

    return show


def _tokens(original: Generated, other: "Run") -> tuple[TokenBeside, ...]:
    start = original.start
    before, after = (x.logits[start - 1 : -1].double().log_softmax(-1) for x in (original.run, other))
    kl = (before.exp() * (before - after)).sum(-1).tolist()
    instead = token_texts(original.run.model.tokenizer, after.argmax(-1).tolist())
    return tuple(
        TokenBeside(token.text, float(b[token.id].exp()), float(a[token.id].exp()), text, distance)
        for token, b, a, text, distance in zip(original.tokens, before, after, instead, kl, strict=True)
    )


def _moved(original: Generated, other: "Run", edits: Sequence[Edit]) -> tuple[HeadMoved, ...]:
    """Total variation between the rows of attention from which the answer was written."""
    dests = range(original.start - 1, len(original.run) - 1)
    named, moved = {edit.head_edited for edit in edits}, []
    for layer in original.run.model.attention_layers:
        rows = [x.attention_run(layer) for x in (original.run, other)]
        plain_rows, edited_rows = (record.weights(record.heads, dests) for record in rows)
        distances = (plain_rows - edited_rows).abs().sum(-1).mean(-1) / 2
        moved += [HeadMoved((layer, h), d, (layer, h) in named) for h, d in enumerate(distances.tolist())]
    moved.sort(key=lambda head: -head.distance)
    return tuple(head for head in moved[:_HEADS] if head.distance > 1e-3)


@dataclass(frozen=True)
class Strength:
    """The answer at one strength of the edits."""

    factor: float
    text: str
    first: float  # probability of the plain answer's first token
    kl: float  # of the first token's distribution, in nats


def sweep(
    model: "Model",
    prompt: Prompt,
    edits: Sequence[Edit],
    factors: Sequence[float] = (1.0, 0.5, 0.0, -1.0),
    *,
    settings: GenerateSettings | None = None,
    progress: "Progress | None" = None,
    **options: Unpack[GenerateOptions],
) -> tuple[Strength, ...]:
    """How does the answer change with the strength of edits?

    Args:
        model: The model.
        prompt: As `Model.generate` takes it.
        edits: What is edited; constants on scores have no factor and stay.
        factors: Each is put in place of every edit's own.
        settings: How answers are written: a `GenerateSettings`.
        progress: Called with the number of factors done and their total.
        **options: Choices by name, as `Model.generate` takes them.

    >>> import keyhole
    >>> from keyhole.edits import ChannelEdit
    >>> edit = ChannelEdit(head=(3, 6), channels=(0,))
    >>> rows = sweep(keyhole.load(), "When Mary and John", [edit], factors=(1.0, 0.0), max_new_tokens=2)
    >>> [row.factor for row in rows]
    [1.0, 0.0]
    """
    how = chosen(settings, GenerateSettings, options)
    original = generate(model, prompt, settings=how)
    before = original.before(0).logits[-1].double().log_softmax(-1)
    rows = []
    for done, factor in enumerate(factors):
        if progress is not None:
            progress(done, len(factors))
        answer = generate(model, prompt, settings=how, edits=with_factor(edits, factor))
        after = answer.before(0).logits[-1].double().log_softmax(-1)
        kl = float((before.exp() * (before - after)).sum())
        rows.append(Strength(factor, answer.text, float(after[original.tokens[0].id].exp()), kl))
    if progress is not None:
        progress(len(factors), len(factors))
    return tuple(rows)
