"""Records of settings: every field has its help; commands, keywords and refusals are read off the same fields."""

import inspect
from dataclasses import MISSING, dataclass, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from keyhole import KeyholeError
from keyhole.cli.app import app
from keyhole.cli.bulk import StoreModel
from keyhole.cli.from_record import from_records
from keyhole.cli.measuring import Baseline, Measuring
from keyhole.cli.name import NamedModel
from keyhole.cli.options import CircuitModel, ModelOptions, PromptOptions
from keyhole.qk.controls import RotationOptions, RotationSettings
from keyhole.settings.agents import AgentSettings
from keyhole.settings.fields import choices_of, chosen, option, require_choices
from keyhole.settings.measuring import (
    GenerateSettings,
    PairSettings,
    StoryOptions,
    StorySettings,
    SufficientOptions,
    SufficientSettings,
)
from keyhole.settings.stores import Asking, AskingOptions, NameSettings, Tracing, WhereOptions, WhereSettings
from keyhole.settings.tracing import Probability, SvtSettings, Through, TraceOptions, TraceSettings
from keyhole.studies.curves.settings import CurveSettings
from keyhole.studies.settings import CompareSettings, FamilySettings, SharedSettings, SinkSettings, StabilitySettings
from keyhole_papers import Running

RECORDS = [  # that commands take their options from
    *(ModelOptions, CircuitModel, StoreModel, NamedModel, PromptOptions, Baseline, Measuring),
    *(TraceSettings, Through, SvtSettings, Tracing, CurveSettings, PairSettings, GenerateSettings),
    *(NameSettings, WhereSettings, Running, CompareSettings, FamilySettings, SharedSettings, SinkSettings),
    *(StabilitySettings, AgentSettings),
]


@dataclass(frozen=True)
class Made:
    """A record of every kind of field."""

    side: Literal["dest", "src"] = option("dest", "Which side.")
    tau: Literal["dynamic"] | float = option("dynamic", "Which threshold.")
    kinds: tuple[Literal["head", "mlp"], ...] | None = option(None, "Which kinds.")
    places: tuple[int, ...] = option((1, 2), "Which places.")
    draws: int = option(3, "How many.", least=1, most=9, names=("--times",))
    deep: bool = option(False, "Deeper?")
    wide: bool = option(True, "Wider?")

    def __post_init__(self) -> None:
        require_choices(self)


def read_places(texts: list[str]) -> tuple[int, ...]:
    return tuple(int(text) for text in texts)


@pytest.fixture
def made() -> Any:
    """What a command gets that takes such a record, as typed."""
    got: list[tuple[str, Made, int]] = []

    @from_records(places=read_places)
    def command(name: str, *, settings: Made, last: Annotated[int, typer.Option(help="The last.")] = 7) -> None:
        got.append((name, settings, last))

    made = typer.Typer()
    made.command()(command)

    def call(*arguments: str) -> Any:
        told = CliRunner().invoke(made, ["name", *arguments])
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            raise told.exception
        return got[-1] if told.exit_code == 0 and got else told.output

    return call


def test_a_command_gets_the_record(made: Any) -> None:
    assert made("--places", "1", "--places", "2") == ("name", Made(), 7)
    typed = ["--side", "src", "--tau", "0.3", "--kinds", "mlp, head", "--places", "5", "--times", "2", "--deep"]
    assert made(*typed, "--no-wide", "--last", "1") == (
        "name",
        Made("src", 0.3, ("mlp", "head"), (5,), draws=2, deep=True, wide=False),
        1,
    )


def test_options_are_in_the_place_of_the_record_and_say_what_they_are(made: Any) -> None:
    told = made("--help")
    order = [told.index(name) for name in ("--side", "--tau", "--kinds", "--places", "--times", "--deep", "--last")]
    assert order == sorted(order) and "--no-deep" not in told and "--no-wide" in told
    assert all(choice.about["help"] in told for choice in choices_of(Made))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("--tau", "often"), "--tau takes dynamic or a number such as 0.2, not 'often'."),
        (("--kinds", "mlp,bias"), "--kinds takes some of head, mlp, separated by commas, not 'bias'."),
    ],
)
def test_a_bad_choice_is_one_sentence(made: Any, typed: tuple[str, ...], message: str) -> None:
    with pytest.raises(KeyholeError) as refused:
        made(*typed)
    assert str(refused.value) == message
    assert "'--side'" in made("--side", "left") and "'--times'" in made("--times", "0")


def test_a_record_refuses_what_its_fields_do_not_take() -> None:
    for wrong, message in (
        ({"side": "left"}, "side is one of dest, src, not 'left'."),
        ({"draws": 0}, "draws is 0, but should be between 1 and 9."),
        ({"draws": float("nan")}, "draws is nan, but should be between 1 and 9."),
    ):
        with pytest.raises(KeyholeError) as refused:
            Made(**wrong)  # type: ignore[arg-type]
        assert str(refused.value) == message


def test_keywords_change_settings() -> None:
    assert chosen(None, Made, {}) == Made() and chosen(Made("src"), Made, {"draws": 2}) == Made("src", draws=2)
    with pytest.raises(KeyholeError) as refused:
        chosen(None, Made, {"draw": 2})
    assert str(refused.value) == (
        "there is no setting 'draw': did you mean draws? Made has side, tau, kinds, places, draws, deep, wide."
    )


@pytest.mark.parametrize("record", [*RECORDS, SufficientSettings, StorySettings, RotationSettings, Asking])
def test_every_field_has_its_default_and_a_line_of_help(record: type) -> None:
    for choice in choices_of(record):
        assert choice.default is not MISSING and choice.about["help"].endswith((".", "?")), choice.name
        choice.require(choice.default)


def test_options_have_the_defaults_of_the_records() -> None:
    """In every command, and with the words that the record takes."""
    seen = set[type]()
    for command in app.registered_commands:
        callback = command.callback
        inner = getattr(callback, "__wrapped__", None)
        if callback is None or inner is None:
            continue
        signature = inspect.signature(callback).parameters
        for record in get_type_hints(inner).values():
            for choice in choices_of(record) if is_dataclass(record) else ():
                assert record in RECORDS, f"{record} stands in no test of help"
                seen.add(record)
                assert signature[choice.name].default == choice.default
    assert seen == set(RECORDS)


@pytest.mark.parametrize(
    ("record", "keywords"),
    [
        (TraceSettings, TraceOptions),
        (SufficientSettings, SufficientOptions),
        (StorySettings, StoryOptions),
        (RotationSettings, RotationOptions),
        (WhereSettings, WhereOptions),
        (Asking, AskingOptions),
    ],
)
def test_keywords_of_functions_are_the_fields_of_their_settings(record: type, keywords: type) -> None:
    hints = get_type_hints(record)
    assert get_type_hints(keywords) == {choice.name: hints[choice.name] for choice in choices_of(record)}


def test_a_share_of_the_answer_is_a_share() -> None:
    with pytest.raises(KeyholeError, match=r"seed_tau is 2\.0"):
        Probability(2.0)
