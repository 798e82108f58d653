"""How are all prompts of a bulk run traced, and against which prompts is each measured?

Against which prompts is a prompt of many measured? Drawn as its task draws them, or others of the same file.

Prompts of a file are alike if they have the same template and as many tokens. Every prompt is held against the first of
these that the file has, itself left out, so that what is measured depends on the file alone.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from keyhole.errors import KeyholeError, require_choice
from keyhole.faithfulness.baseline import LEAST
from keyhole.faithfulness.search import LEVEL
from keyhole.models.model import Model
from keyhole.models.tokens import encode
from keyhole.tasks.catalogue import like
from keyhole.tasks.example import Example
from keyhole.tasks.variants import OTHERS
from keyhole.tracing.candidates import Keys
from keyhole.tracing.mlp_directions import Through
from keyhole.tracing.seeds import Probability
from keyhole.tracing.settings import Settings, Sinks, SvtSettings
from keyhole.tracing.trace import ManyOptions, MethodOption, ThroughOption, require_no_accpp, svt_of

MOST = 32  # prompts that a prompt is measured against
Alike = Mapping[tuple[str, int], tuple[Example, ...]]  # prompts by template and number of tokens


def drawn(examples: Sequence[Example]) -> bool:
    """Can prompts like these be drawn? Those of tasks can."""
    return all(example.task in OTHERS for example in examples)


def alike_in(model: Model, examples: Sequence[Example], bos: bool | None) -> Alike:
    """The prompts of a file by template and number of tokens, some of each; refused where none has enough others."""
    found: dict[tuple[str, int], dict[str, Example]] = defaultdict(dict)
    for example in examples:
        with suppress(KeyholeError):  # what cannot be encoded fails in its turn
            group = found[_kind(model, example, bos)]
            if len(group) <= MOST:
                group.setdefault(example.text, example)
    most = max((len(group) for group in found.values()), default=0)
    if most <= LEAST:
        raise KeyholeError(
            f"effects are measured against prompts of the same template and with as many tokens, at least {LEAST} "
            f"others, and no more than {most} of these {len(examples)} prompts are alike: add prompts that differ in "
            "their words alone."
        )
    return {kind: tuple(group.values()) for kind, group in found.items()}


def like_of(model: Model, example: Example, alike: Alike | None, bos: bool | None) -> list[Example]:
    """The prompts that one is measured against: drawn, or others of its file."""
    if alike is None:
        return like(example, model, MOST)
    others = [other for other in alike.get(_kind(model, example, bos), ()) if other.text != example.text][:MOST]
    if len(others) < LEAST:
        raise KeyholeError(
            f"only {len(others)} other prompts of the file have the template of {example.text!r} and as many tokens, "
            f"and {LEAST} are needed."
        )
    return others


def _kind(model: Model, example: Example, bos: bool | None) -> tuple[str, int]:
    return example.template, len(encode(model, example.text, bos).ids)


# How is every prompt of a bulk run traced? What decides the circuits, to the last digit: a store keeps all of it.

Wrong = Literal["keep", "skip"]
SeedRule = Literal["prob", "linear"]
FixedTau = Literal["dynamic"] | float


@dataclass(frozen=True)
class Tracing:
    """How every prompt is traced; `trace_many` says what seeds, tau, keys, sinks and through do.

    With the method "svt", or a `SvtSettings`, tau, keys, sinks and through are left as they are: they are of accpp. The
    tokens of a start may then be roles of the task, such as (9, 6, "END", "IO").

    `batch` and `threads` change no more than last digits: sums over a padded batch, or over the shares of threads, are
    added up in another order. They are kept with the others: tables are the same whatever was interrupted.
    """

    method: MethodOption = "accpp"  # or svt, or its settings
    seeds: SeedRule | Probability | None = None  # None: linear where there are wrong answers or for svt, else prob
    tau: FixedTau = "dynamic"  # weight below which a firing counts as gone
    keys: Keys = "all"  # which keys a src-side removal touches
    sinks: Sinks = "keep"  # firings on the first token
    through: ThroughOption = "mlps"  # mlps or heads, or settings
    wrong: Wrong = "keep"  # prompts that the model gets wrong are traced, or skipped
    bos: bool | None = None  # a beginning-of-sequence token first; None: the tokenizer's habit
    batch: int = 32  # prompts traced together: memory grows with them
    threads: int = 1  # of each worker
    signals: bool = False  # keep the vector of every signal, too: most of a store's bytes
    effects: bool = False  # measure effects, shares and faithfulness of every circuit
    sufficient: bool = False  # instead of tracing, search for circuits that suffice; these are measured, too
    level: float = LEVEL  # of the answer, that such a circuit keeps at least
    both_signs: bool = False  # with edges that hold the answer back

    def __post_init__(self) -> None:
        if self.seeds not in (None, *get_args(SeedRule)) and not isinstance(self.seeds, Probability):
            raise KeyholeError(f"bulk runs have seeds 'prob', 'linear' or a Probability, not {self.seeds!r}.")
        if self.tau != "dynamic" and not isinstance(self.tau, int | float):
            raise KeyholeError(
                f"tau of a bulk run is 'dynamic' or a number, not {self.tau!r}: a store keeps its value."
            )
        if not isinstance(self.through, Through):
            require_choice("through", self.through, Literal["heads", "mlps"])
        require_choice("wrong", self.wrong, Wrong)
        for name in ("batch", "threads"):
            if getattr(self, name) < 1:
                raise KeyholeError(f"{name} is {getattr(self, name)}, but should be at least 1.")
        self._require_measuring()
        if self.svt is not None:
            require_no_accpp(self.options())
            self.svt.require_no_seeds(self.seeds)
        Settings(seeds=self.seeds or "prob", tau=self.tau, keys=self.keys, sinks=self.sinks)  # refuses what is wrong

    def _require_measuring(self) -> None:
        if (self.level, self.both_signs) != (LEVEL, False) and not self.sufficient:
            raise KeyholeError("level and both signs are of circuits that suffice: ask for these (sufficient).")
        if not 0 < self.level <= 1:
            raise KeyholeError(f"level is {self.level}, but the share of an answer that is kept lies between 0 and 1.")
        of_tracing = (self.method, self.seeds, *self.options().values())
        if self.sufficient and of_tracing != ("accpp", None, *Tracing().options().values()):
            raise KeyholeError(
                "circuits that suffice are searched for and not traced: leave out method, seeds, tau, keys, sinks and "
                "through."
            )

    @property
    def measured(self) -> Literal["effects", "sufficient"] | None:
        """What is measured of every prompt, against prompts like it; None: nothing."""
        return "sufficient" if self.sufficient else "effects" if self.effects else None

    @property
    def svt(self) -> SvtSettings | None:
        """The settings of svt; None: prompts are traced by accpp."""
        return svt_of(self.method)

    @property
    def against(self) -> bool:
        """Are answers held against wrong ones, where there are some?"""
        return self.seeds in (None, "linear")

    def options(self) -> ManyOptions:
        """What `trace_many` is told."""
        return {
            "seeds": self.seeds,
            "tau": self.tau,
            "keys": self.keys,
            "sinks": self.sinks,
            "through": self.through,
        }

    def plain(self) -> dict[str, Any]:
        """Every choice as plain values, defaults spelled out: what a store keeps and compares.

        Stores of accpp do not name the method, as when there was no other.
        """
        share = self.seeds.tau if isinstance(self.seeds, Probability) else Probability().tau
        rule = "prob" if isinstance(self.seeds, Probability) else self.seeds
        for_all = {name: getattr(self, name) for name in ("wrong", "bos", "batch", "threads")}
        if self.measured is not None:  # stores without it do not name it, as when nothing was measured
            for_all["like"] = MOST
        if self.sufficient:
            return {"method": "sufficient", "level": self.level, "both_signs": self.both_signs, **for_all}
        if self.effects:
            for_all["effects"] = True
        if self.svt is not None:
            usual = "linear" if self.svt.start is None else "given"
            return {"method": "svt", "seeds": rule or usual, "seed_tau": share, **asdict(self.svt), **for_all}
        through = self.through if isinstance(self.through, Through) else Through()
        further = {"through": "heads"} if self.through == "heads" else {"through": "mlps", **asdict(through)}
        accpp = {name: getattr(self, name) for name in ("tau", "keys", "sinks")}
        usual = "linear where there are wrong answers"
        return {"seeds": rule or usual, "seed_tau": share, **further, **accpp, **for_all}
