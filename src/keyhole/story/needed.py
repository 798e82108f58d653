"""Which words does the answer need, though no told path begins there? Every other word is silenced once.

Accounting follows what is strong. A word that works through many weak signals has a path that is too small to tell, or
none that was followed; the answer may hang on it all the same.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from keyhole.circuits.writer import Writer
from keyhole.intervene.gradients import estimate
from keyhole.intervene.remove import Metric
from keyhole.intervene.writers import answers_without
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.run import Run

MOST = 64  # words that are silenced; of more, those that the answer hangs on most to first order


def words_silenced(
    run: "Run", told: Collection[int], metric: Metric, *, progress: Progress | None = None
) -> dict[int, float]:
    """The answer without the word at each token, of those where no told path begins.

    The first token is left out: without it heads lose their sink, whatever the word says.
    """
    words = [token for token in range(1, metric.end + 1) if token not in told]
    if len(words) > MOST:
        losses = estimate(run, metric)
        words = sorted(words, key=lambda token: -abs(losses.of(_word(token))))[:MOST]
    after = answers_without(run, [[_word(token)] for token in words], metric, progress=progress)
    return dict(zip(words, after, strict=True))


def _word(token: int) -> Writer:
    return Writer("embedding", 0, None, token, token)
