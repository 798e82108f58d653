"""What can be chosen about the server for agents (`keyhole mcp`)? How far its answers and its reach go."""

from dataclasses import dataclass

from keyhole.settings.fields import option, require_choices

TOKENS = 2000  # of a prompt


@dataclass(frozen=True)
class AgentSettings:
    """What agents may ask for, and how long an answer is.

    >>> AgentSettings(limit=10)
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: limit is 10, but should be at least 1000.
    """

    any_model: bool = option(
        False,
        "Let agents name any model, too: a hub name, which is downloaded, or a folder or file of this machine.",
    )
    limit: int = option(
        20_000,
        "How many characters an answer has at most. A longer one is written to a file in the folder, and shown up to "
        "here.",
        least=1000,
    )
    tokens: int = option(TOKENS, "How many tokens a prompt has at most.", least=1)

    def __post_init__(self) -> None:
        require_choices(self)
