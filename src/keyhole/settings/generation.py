"""How is an answer written? How long it may be, how each token is drawn, and what ends it."""

from dataclasses import dataclass
from typing import TypedDict

from keyhole.errors import KeyholeError
from keyhole.settings.fields import option, require_choices
from keyhole.strict import quoted


@dataclass(frozen=True)
class GenerateSettings:
    """How an answer is written; what a model's own `generation_config.json` recommends is left aside.

    >>> GenerateSettings(temperature=0.7, stop=["Mary", "John"]).stop
    ('Mary', 'John')
    """

    max_new_tokens: int = option(40, "How many tokens are written at most.", least=1)
    temperature: float = option(
        0.0, "How freely tokens are drawn: 0 takes the likeliest, 1 draws as the model's probabilities say.", least=0
    )
    top_p: float = option(
        1.0, "Draw from the likeliest tokens that together have this probability, above 0 and up to 1.", most=1
    )
    top_k: int | None = option(None, "Draw from this many of the likeliest tokens. Default: from all.", least=1)
    seed: int = option(0, "Seed of the draws.", least=0)
    stop: tuple[str, ...] = option((), "End where this text is written; repeatable. Default: nowhere.", metavar="TEXT")

    def __post_init__(self) -> None:
        texts = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in texts):
            raise KeyholeError(f"stop is a text or several, none of them empty, not {quoted(self.stop)}.")
        object.__setattr__(self, "stop", texts)
        require_choices(self)
        if not self.top_p > 0:
            raise KeyholeError(f"top_p is {self.top_p}, but a share of probability lies above 0 and up to 1.")
        if not self.temperature and (self.top_p, self.top_k) != (1.0, None):
            raise KeyholeError("top_p and top_k choose among tokens that are drawn: give a temperature above 0.")


class GenerateOptions(TypedDict, total=False):
    """The fields of `GenerateSettings`, for functions that take them as keywords."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    stop: str | tuple[str, ...] | list[str]
