"""How is a model loaded without a word? Bars and warnings of libraries off, and afterwards as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import utils as hub
from transformers.utils import logging


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """No bars, and errors only, of transformers and the hub's client."""
    verbosity, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), not _hub_bars_off()
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # the hub's too
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # the hub's too
        if hub_bars and _hub_bars_off():
            hub.enable_progress_bars()
        elif not hub_bars and not _hub_bars_off():
            hub.disable_progress_bars()


def _hub_bars_off() -> bool:
    return bool(hub.are_progress_bars_disabled())
