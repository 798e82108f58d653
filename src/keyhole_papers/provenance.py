"""What was a result measured on? Which model stood in for the published one, and which prompts it was asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole_papers.results import Verdict


@dataclass(frozen=True)
class Provenance:
    """The model and the prompts behind a result.

    >>> Provenance("distilgpt2", False, prompts="8 prompts").text
    'Prompts: 8 prompts. distilgpt2 stood in for GPT-2 small.'
    """

    model: str | None  # as it was asked for; None: the organism, or a toy
    real: bool  # is it the published one?
    published: str = "GPT-2 small"
    prompts: str = ""  # how many, and which
    heads: str = ""  # how they were given their roles

    @property
    def stood_in(self) -> str:
        """Which model stood in for the published one?"""
        if self.real:
            return ""
        whose = self.model or "The built-in organism (4 layers of 8 heads with 16 channels each)"
        return f"{whose} stood in for {self.published}."

    @property
    def text(self) -> str:
        """All of it, as a note ends."""
        prompts = f"Prompts: {self.prompts}." if self.prompts else ""
        return " ".join(part for part in (prompts, self.heads, self.stood_in) if part)

    def verdict(self, holds: Sequence[bool], *, first: bool = True) -> Verdict:
        """Half of what was published is a part of it; without `first`, what the rest depends on, or evidence, nothing.

        Another model than the published one shows a part of it, no more; nor does it refute it.
        """
        half = first and len(holds) > 0 and 2 * sum(holds) >= len(holds)
        if self.real:
            return "reproduced" if half and all(holds) else "partly" if half else "not"
        return "partly" if half else "needs a model"


TOY = Provenance(None, True)  # nothing stands in for anything
