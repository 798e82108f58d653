"""Where is the organism, the small trained model that ships with Keyhole? See MODEL_CARD.md here."""

from pathlib import Path


def folder() -> Path:
    """Which folder holds the organism's weights and tokenizer, as transformers reads them?

    >>> (folder() / "config.json").exists()
    True
    """
    return Path(__file__).parent
