"""What do the options of several commands take, and which words?

The choices are the library's own, spelled again where help can read them without torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from keyhole import show
from keyhole.brief import Head, head_named
from keyhole.errors import KeyholeError
from keyhole.settings.fields import option
from keyhole.settings.stores import BOS
from keyhole.settings.tracing import KEYS, TAU, Keys, Start, SvtSettings, Tau, TraceSettings
from keyhole.strict import parse_json, quoted

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.models.tokens import Prompt

Dtype = Literal["float32", "float64", "bfloat16", "float16", "auto"]
Traced = TypeVar("Traced", bound=TraceSettings)
Basis = Literal["linear", "homogeneous"]
Mode = Literal["exact", "local", "chain", "global"]
CutMode = Literal["exact", "local", "global"]
BoxFeature = Literal["order", "lexical", "reflexive", "both"]
Wording = Literal["plain", "instruct"]
Frame = Literal["post_rope", "pre_rope", "relative"]
Centre = Literal["none", "each", "pooled"]
Balance = Literal["pairs", "prompts"]
Nonlinearity = Literal["cube", "tanh"]
Preset = Literal["fast", "paper"]
Latents = Literal["discrete", "gaussian", "sphere"]
Reduction = Literal["sum", "mean"]
QueryMode = Literal["last", "indep"]
Paper = Literal["svf", "svt", "cc", "talk"]
CacheAction = Literal["clear"]
EngineName = Literal["local", "ray"]
ExplainerName = Literal["statistics", "llm"]
JudgeName = Literal["rule", "llm"]


# Options that commands share, and how their texts become models, runs and places.

_DIGITS = 19  # no position has so many, and Python makes no numbers of thousands
DTYPE = (
    "Number format to compute with; auto: as the weights are stored. What float16 and bfloat16 round away is traced as "
    "a writer of its own; float16 overflows beyond 65504."
)
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Hub name, model folder or .gguf file. Default: the built-in organism."),
]
DtypeOption = Annotated[Dtype, typer.Option(help=DTYPE)]
DeviceOption = Annotated[
    str | None, typer.Option(help="Device that the model is put on, such as cuda. Default: the CPU.")
]
DestOption = Annotated[str, typer.Option(help="The attending token: a position (-1: the last) or its text.")]
SrcOption = Annotated[
    str | None,
    typer.Option(help="The attended token: a position or its text. Default: the token that gets the most attention."),
]
TauOption = Annotated[str, typer.Option(help=TAU)]
KeysOption = Annotated[Keys, typer.Option(help=KEYS)]
BosOption = Annotated[bool | None, typer.Option("--bos/--no-bos", help=BOS)]
FiguresOption = Annotated[
    str, typer.Option(help="File formats of the pictures: png, svg, pdf, or several such as svg,pdf.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
PromptArgument = Annotated[
    str | None, typer.Argument(help="The prompt, in quotes. Needed unless --token-ids is given.", show_default=False)
]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    model: str | None = option(
        None, "Hub name, model folder or .gguf file. Default: the built-in organism.", names=("--model", "-m")
    )
    revision: str | None = option(None, "Revision of a hub model: a branch, tag or commit. Default: the newest.")
    dtype: Dtype = option("float32", DTYPE)
    device: str | None = option(None, "Device that the model is put on, such as cuda. Default: the CPU.")
    adapter: str | None = option(None, "Folder of a PEFT adapter (such as LoRA) of the model. Default: none.")
    memory: str | None = option(None, "Memory that folded weights may take, such as 8GB. Default: no limit.")

    def load(self, name: str | None = None) -> Model:
        """Load what --model names, or the model of this name."""
        source = self.model if name is None else name
        with show.progress("Importing torch and transformers"):
            import torch

            from keyhole.models.load import load
        dtype = "auto" if self.dtype == "auto" else getattr(torch, self.dtype)
        with show.progress(f"Loading {Path(source).name if source else 'the organism'}"):
            return load(
                source,
                revision=self.revision,
                dtype=dtype,
                device=self.device,
                adapter=self.adapter,
                memory=self.memory,
            )


@dataclass(frozen=True)
class CircuitModel(ModelOptions):
    """The model of a circuit file."""

    model: str | None = option(
        None, "Hub name, model folder or .gguf file. Default: the circuit's own model.", names=("--model", "-m")
    )


@dataclass(frozen=True)
class PromptOptions(ModelOptions):
    """Which model runs a prompt, and how the prompt becomes tokens."""

    token_ids: str | None = option(
        None, "The prompt as token ids, such as 8,10,84. Default: the prompt's text is tokenized."
    )
    bos: bool | None = option(None, BOS)
    chat: bool = option(
        False, "The prompt is a user's message, or a JSON list of messages: put it into the model's chat template."
    )
    system: str | None = option(None, "With --chat: a system prompt, put before the messages. Default: none.")

    def read(self, prompt: str | None) -> Prompt:
        """The prompt as the library takes it: text, the ids of --token-ids, or messages."""
        if (prompt is None) == (self.token_ids is None):
            raise KeyholeError("give a prompt in quotes, or --token-ids, and not both.")
        if self.system is not None and not self.chat:
            raise KeyholeError("--system stands before the messages of a chat: add --chat.")
        if prompt is None:
            if self.chat:
                raise KeyholeError("--chat puts text into the chat template, and --token-ids are tokens already.")
            return read_ids(self.token_ids or "")
        if not self.chat:
            return prompt
        from keyhole.models.chat import messages_of

        return messages_of(prompt, self.system)

    def run(self, prompt: str | None) -> Run:
        """Load the model and run the prompt, the ids of --token-ids, or the messages of a chat."""
        text = self.read(prompt)
        model = self.load()
        with show.progress("Running the prompt"):
            run = model.run(text, bos=self.bos)
        if isinstance(text, str) and text.endswith(" ") and not run.tokens[-1].strip():
            show.note(
                "the prompt ends in a space, which is a token of its own here: most models were not trained to go on "
                "from there. Leave it out unless you mean it."
            )
        return run


def read_ids(text: str) -> list[int]:
    """Token ids separated by commas or spaces."""
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise KeyholeError(f"--token-ids takes whole numbers such as 8,10,84, not {quoted(text)}.") from error


def read_choices(texts: list[str] | None, option: str = "--with", example: str = "design=mixed") -> dict[str, Any]:
    """Choices of a task such as design=mixed: numbers, true, false, null and lists as JSON has them, else text.

    >>> read_choices(["design=mixed", "n_boxes=4", "held_out=true", 'names=["Mary", "John"]'])
    {'design': 'mixed', 'n_boxes': 4, 'held_out': True, 'names': ['Mary', 'John']}
    """
    choices: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not (name.isidentifier() and equals):
            raise KeyholeError(f"{option} takes a choice such as {example}, not {text!r}.")
        if option == "--with" and name in ("model", "n", "seed"):
            raise KeyholeError(f"{name} is an option of its own: give --{name} {value}.")
        try:
            choices[name] = parse_json(value)
        except KeyholeError:
            choices[name] = value
    return choices


def read_head(text: str, option: str = "--head") -> "Head":
    """A head such as 3.1."""
    head = head_named(text)
    if head is None:
        raise KeyholeError(f"{option} takes a layer and a head such as 3.1, not {quoted(text)}.")
    return head


def read_heads(texts: list[str]) -> tuple[Head, ...]:
    """Every --head."""
    return tuple(read_head(text) for text in texts)


def read_place(run: Run | None, text: str | None) -> int | str | None:
    """A position if it is a number, else the text of a token; token:17 and pos:17 say which is meant."""
    if text is None:
        return None
    kind, colon, rest = text.partition(":")
    if colon and kind == "token":
        return rest
    number = rest if colon and kind == "pos" else text
    if not number.removeprefix("-").isdecimal():
        return text
    if len(number) >= _DIGITS:
        raise KeyholeError(f"there is no position {quoted(number)}: positions are numbered from 0.")
    if run is not None and number == text and any(token.strip() == text for token in run.tokens):
        raise KeyholeError(f"{text} is a position, but a token also reads so: write pos:{text} or token:{text}.")
    return int(number)


def read_answers(texts: list[str] | None) -> list[str | int]:
    """Texts of tokens, and the numbers of those that are given as id:230.

    >>> read_answers(["Mary", "id:230", "17"]), read_answers(None)
    (['Mary', 230, '17'], [])
    """
    numbers = [re.fullmatch(r"id:(\d{1,18})", text) for text in texts or []]
    return [int(number[1]) if number else text for number, text in zip(numbers, texts or [], strict=True)]


def read_start(text: str, run: Run | None = None) -> Start:
    """A head such as 9.6, or a firing such as 9.6:-1:Mary; its tokens as `read_place` reads them.

    >>> read_start("9.6"), read_start("9.6:-1:Mary"), read_start("9.6:pos:14:token:17")
    ((9, 6), (9, 6, -1, 'Mary'), (9, 6, 14, '17'))
    """
    head, colon, places = text.partition(":")
    if not colon:
        return read_head(head, "--start")
    match = re.fullmatch(r"((?:pos:|token:)?[^:]+):((?:pos:|token:)?[^:]+)", places)
    if match is None:
        raise KeyholeError(f"--start takes a head such as 9.6 or a firing such as 9.6:-1:Mary, not {text!r}.")
    dest, src = (read_place(run, place) for place in match.groups())
    assert dest is not None and src is not None
    return (*read_head(head, "--start"), dest, src)


def read_starts(texts: list[str]) -> list[Start] | None:
    """Every --start; None: there is none."""
    return [read_start(text) for text in texts] or None


def with_svt(settings: Traced, svt: SvtSettings) -> Traced:
    """--method with what was typed for svt, which accpp would not heed."""
    if settings.method == "svt":
        return replace(settings, method=svt)
    if svt != SvtSettings():
        raise KeyholeError(
            "--start, --threshold, --share and --channels are of --method svt: add it or leave them out."
        )
    return settings


def read_kinds(text: str) -> list[str]:
    """--figures: kinds of pictures, by commas."""
    kinds = list(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    if not set(kinds) <= {"png", "svg", "pdf"}:
        raise KeyholeError(f"--figures takes png, svg, pdf or several by commas, not {text!r}.")
    return kinds


def read_tau(text: str) -> Tau:
    """--tau: dynamic or a number."""
    if text == "dynamic":
        return "dynamic"
    try:
        return float(text)
    except ValueError as error:
        raise KeyholeError(f"--tau takes dynamic or a number such as 0.2, not {quoted(text)}.") from error


def write_each(places: Sequence[Path], save: Callable[[Path], object], *, json: bool) -> None:
    """Write a result to every place, and say so; with an error only when all were tried.

    It is called after the answer is shown, which a full disk must not cost; nor may one file cost the others.
    """
    failed = []
    for path in places:
        try:
            save(path)
        except KeyholeError as error:
            failed.append(error)
            continue
        if not json:
            show.plain(f"wrote {path}")
    if failed:
        raise failed[0]
