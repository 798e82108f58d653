"""Does a claim hold? The verdict, every test with its figure, and all that it was measured with."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from keyhole.claims.evidence import ClaimTest
from keyhole.claims.records import Claim
from keyhole.report import Report, Reported, Section, Table
from keyhole.stats import cell_text

Verdict = Literal["passes", "fails", "cannot be tested"]
SCHEMA = 1


@dataclass(frozen=True)
class PromptSet:
    """Prompts that were tested, by what they are for."""

    name: str
    used: int  # those that the model answers rightly; of negatives, all
    of: int
    first: tuple[str, ...]  # a few of them, as they stand


@dataclass(frozen=True)
class ClaimResult(Reported):
    """What a test of a claim said of one model.

    A claim passes if every test does. A figure whose interval reaches the bound has not been shown, and is no pass.
    """

    claim: Claim
    says: str  # what was tested, in the words of the tests
    document: dict[str, Any]  # the claim as its file has it, with every setting
    model: dict[str, Any]  # its name, family and fingerprint
    versions: dict[str, str]
    verdict: Verdict
    reason: str  # why it cannot be tested; empty otherwise
    tests: tuple[ClaimTest, ...]
    prompts: tuple[PromptSet, ...]

    @property
    def passes(self) -> bool:
        """Does the claim hold, by every test?"""
        return self.verdict == "passes"

    @property
    def failed(self) -> tuple[ClaimTest, ...]:
        """The tests that it does not pass."""
        return tuple(test for test in self.tests if not test.holds)

    @property
    def summary(self) -> str:
        """The verdict in a sentence.

        >>> from keyhole.claims import Moves, TaskPrompts
        >>> claim = Moves(claim="Head 1.6 moves IO", prompts=TaskPrompts("ioi"), head=(1, 6), src="IO")
        >>> print(ClaimResult(claim, claim.says, {}, {}, {}, "cannot be tested", "no prompts", (), ()).summary)
        Cannot be tested: no prompts
        """
        if self.verdict == "cannot be tested":
            return f"Cannot be tested: {self.reason}"
        passed = sum(test.holds for test in self.tests)
        verdict = f"{self.verdict.capitalize()}: {passed} of {len(self.tests)} tests passed."
        names = "; ".join(test.name for test in self.failed)
        return f"{verdict} Not shown: {names}." if names else verdict

    def record(self) -> dict[str, Any]:
        """As plain data: what JSON has."""
        return {
            "schema": SCHEMA,
            "claim": self.document,
            "says": self.says,
            "model": self.model,
            "versions": self.versions,
            "verdict": self.verdict,
            "reason": self.reason,
            "tests": [test.record() for test in self.tests],
            "prompts": [asdict(prompts) for prompts in self.prompts],
        }

    def report(self) -> Report:
        """What it says, for a terminal and a page."""
        columns = ("test", "holds", ">figure", ">from", ">to", ">n", "asked", "note")
        rows = [
            (
                test.name,
                "yes" if test.holds else "no",
                _figure(test.figure),
                test.low,
                test.high,
                test.n,
                test.asked,
                test.note,
            )
            for test in self.tests
        ]
        settings = self.document.get("settings", {})
        return Report(
            title=self.claim.claim,
            summary=f"{self.summary}\n\nTested on {self.model.get('name')}: {self.says}.",
            sections=[
                Section("Tests", [Table(columns, rows), _reading(self)]),
                Section(
                    "Prompts",
                    [
                        Table(
                            ("prompts", ">used", ">of", "the first of them"),
                            [(each.name, each.used, each.of, "\n".join(each.first)) for each in self.prompts],
                        )
                    ],
                    page_only=True,
                ),
                Section(
                    "Settings",
                    [Table(("setting", ">value"), [(name, cell_text(value)) for name, value in settings.items()])],
                    page_only=True,
                ),
            ],
            table=Table(
                ("test", "holds", ">figure", ">low", ">high", ">n", "asked", "note"),
                [(t.name, str(t.holds), t.figure, t.low, t.high, t.n, t.asked, t.note) for t in self.tests],
            ),
        )


def _figure(value: float) -> float | int:
    """Counts without a fraction."""
    return int(value) if value == int(value) and value > 1 else value


def _reading(result: ClaimResult) -> str:
    """How the figures are to be read."""
    if not result.tests:
        return ""
    share = {
        "matches": "Figures are shares of the head's attention weight on the claim's prompts.",
        "suffices": "Figures are shares of the answer, with all else at the mean of the prompts.",
    }.get(result.claim.kind, "Figures are shares of the answer's size on the claim's prompts.")
    confidence = result.claim.settings.confidence
    return f"{share} From and to: {confidence:.0%} intervals over prompts."
