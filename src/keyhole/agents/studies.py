"""Tools that study features and claims: contrast, claim."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import Field

from keyhole.agents.bodies import Answer, ModelBody, Several, read_head
from keyhole.agents.offered import Offered
from keyhole.circuits.files import to_json
from keyhole.claims import Claim, TaskPrompts, claim_of
from keyhole.claims import claim as test_claim
from keyhole.claims.files import SUFFIXES, parse_toml
from keyhole.errors import KeyholeError
from keyhole.features.contrast import report as contrast_text
from keyhole.features.contrast.lists import BoxFeature, built_in
from keyhole.features.contrast.sites import Contrast, read_contrast
from keyhole.features.contrast.studies import Selection, StudySettings, study
from keyhole.report.terminal import as_text
from keyhole.requests.bodies import Seed, takes
from keyhole.requests.jobs import Reporter
from keyhole.settings.claims import ClaimSettings
from keyhole.settings.fields import choices_of
from keyhole.strict import parse_json, quoted, read_text

MOST = 1000  # prompts of a task in a claim

# Which query-key feature tells keys apart?


@takes(StudySettings, "frame", "centre", "balance")
class ContrastBody(ModelBody):
    """A contrast, and how much of it is studied: less than the library's defaults, as somebody waits."""

    what: str = Field(description="A built-in contrast, boxes or lists, or a file of samples (.jsonl) in the folder.")
    feature: BoxFeature = Field("both", description="With boxes: the feature that is sought.")
    prompts: int = Field(60, ge=1, le=2000, description="How many prompts the feature is made from.")
    tests: int = Field(30, ge=8, le=2000, description="How many other prompts test the feature.")
    heads: Several = Field([], description="Study these heads, such as 1.6. Default: selected by their scores.")
    rank: Literal["null", "energy", "halves"] | int = Field(
        "null",
        description="How many directions a feature has: a number, or a rule: null (permutations), energy (share of the "
        "variance) or halves (split-half agreement).",
    )
    permutations: int = Field(99, ge=19, le=999, description="How many permutations make up the null distribution.")
    draws: int = Field(10, ge=1, le=100, description="How many random subspaces each feature is compared with.")
    answers: int = Field(8, ge=0, le=200, description="How many prompts are run again with edited keys; 0: none.")
    seed: Seed = Field(0, description="Seed of prompts, halves, permutations and controls.")


def contrast(offered: Offered, body: ContrastBody, reporter: Reporter) -> Answer:
    """Which query-key feature tells some keys from others, in which heads, and does attention follow it?

    A sample is a query, keys that have the feature, and keys that have it not. A file has one a line:
    {"prompt": "...", "query": "last", "positive": [{"find": "cats"}], "negative": [{"find": "dog"}]}.
    """
    given = None
    if body.what not in ("boxes", "lists"):
        given = read_contrast(offered.folder.existing(body.what, (".jsonl",)))
    model = offered.model(body.model, reporter)
    reporter.check()
    test: Contrast | None = None
    if given is not None:
        fits = {given.name: given}
    else:
        name: Literal["boxes", "lists"] = "boxes" if body.what == "boxes" else "lists"
        fits, test = built_in(model, name, (body.prompts, body.tests), feature=body.feature, seed=body.seed)
    select = Selection("ratio", 0.1, top=3) if body.what == "lists" else Selection("accuracy", 0.3)
    settings = replace(body.settings(StudySettings), select=select)
    heads = [read_head(text) for text in body.heads]
    result = study(model, fits, test, heads=heads, settings=settings, stage=reporter.stage)
    return Answer(as_text(contrast_text.report(result)), contrast_text.record(result))


# Is a claim true?

_CHOICES = tuple(choice.name for choice in choices_of(ClaimSettings))
_EXAMPLE = (
    '{"schema": 1, "claim": "Head 1.6 moves the receiver to the end", "kind": "moves", "head": "1.6", "src": "IO", '
    '"dest": "END", "prompts": {"task": "ioi", "n": 24}}'
)


@takes(ClaimSettings, *_CHOICES)
class ClaimBody(ModelBody):
    """A claim, and what its tests are held to in place of its own settings."""

    claim: str | dict[str, Any] = Field(
        description="A file of one claim (.toml or .json) in the server's folder, or what such a file has: the kind is "
        f"moves, matches, needs or suffices, and src and dest are roles of the prompts. For example {_EXAMPLE}"
    )


def claim(offered: Offered, body: ClaimBody, reporter: Reporter) -> Answer:
    """Does a claim about a mechanism hold?

    It is tested by removal on its prompts, on rewrites, on negatives where it should not hold, and with controls. It
    passes if every test does; what an interval leaves open is no pass.
    """
    record = _claim(offered, body.claim)
    if isinstance(record.prompts, TaskPrompts) and record.prompts.n > MOST:
        raise KeyholeError(
            f"a claim is tested here on up to {MOST:,} prompts of a task, and not on {record.prompts.n:,}."
        )
    model = offered.model(body.model, reporter)
    chosen: Any = {name: getattr(body, name) for name in _CHOICES if name in body.model_fields_set}
    result = test_claim(model, record, progress=reporter.progress("Testing"), **chosen)
    return Answer(str(result), result.record())


def _claim(offered: Offered, given: str | Mapping[str, Any]) -> Claim:
    """A claim; a file of a circuit that it names is one of the folder."""
    document, folder = given, PurePosixPath()
    if isinstance(given, str):
        path, folder = offered.folder.existing(given, SUFFIXES), PurePosixPath(given).parent
        text = read_text(path)
        try:
            document = parse_toml(text) if path.suffix.lower() == ".toml" else parse_json(text)
        except KeyholeError as error:
            raise KeyholeError(f"{quoted(given)} has no claim that can be read: {error}") from error
    if isinstance(document, Mapping) and isinstance(document.get("circuit"), str):
        circuit = offered.circuit(str(folder / document["circuit"]))
        document = {**document, "circuit": parse_json(to_json(circuit))}
    return claim_of(document)
