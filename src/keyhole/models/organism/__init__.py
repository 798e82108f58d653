"""Where is the organism, the small trained model that ships with Keyhole? See MODEL_CARD.md here."""

from pathlib import Path

NAME = "organism"


def folder() -> Path:
    """Which folder holds the organism's weights and tokenizer, as transformers reads them?

    >>> (folder() / "config.json").exists()
    True
    """
    return Path(__file__).parent


def source_named(name: str | None) -> str | None:
    """What `keyhole.load` takes for a model that a file names: nothing for the organism, and without a name.

    Args:
        name: The model's name in the file.

    >>> source_named("gpt2"), source_named("organism")
    ('gpt2', None)
    """
    return None if name == NAME else name
