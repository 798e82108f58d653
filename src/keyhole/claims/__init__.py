"""Is it true? A claim about a mechanism, stated in a file or a record, and tested by removal, with controls.

keyhole.claim(model, "mary.toml")     the verdict, with every test: figure, interval, what was asked
Moves, Matches, Needs, Suffices       what can be claimed
circuit.claims(example)               claims that follow from what was traced; edge.claim, firing.claim, contrast.claim
keep_claim, kept_claims               results beside a store
"""

from keyhole.claims.cases import UntestableError
from keyhole.claims.evidence import ClaimTest
from keyhole.claims.files import claim_of, document_of, load_claim, save_claim
from keyhole.claims.kept import keep_claim, kept_claims, load_result
from keyhole.claims.records import (
    KINDS,
    Claim,
    Exchange,
    Matches,
    Moves,
    Needs,
    Rewrite,
    Sender,
    Suffices,
    TaskPrompts,
)
from keyhole.claims.result import ClaimResult
from keyhole.claims.testing import claim
from keyhole.settings.claims import ClaimSettings

__all__ = [
    "KINDS",
    "Claim",
    "ClaimResult",
    "ClaimSettings",
    "ClaimTest",
    "Exchange",
    "Matches",
    "Moves",
    "Needs",
    "Rewrite",
    "Sender",
    "Suffices",
    "TaskPrompts",
    "UntestableError",
    "claim",
    "claim_of",
    "document_of",
    "keep_claim",
    "kept_claims",
    "load_claim",
    "load_result",
    "save_claim",
]
