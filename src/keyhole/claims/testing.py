"""Is a claim true of a model? Each test that a claim of its kind must pass, and the verdict.

passes              every test holds
fails               at least one does not: an interval that reaches the bound has not been shown
cannot be tested    the model does not give the answers, or there is nothing to compare with; no figure decides
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
import transformers

from keyhole.claims.cases import Cases, UntestableError, cases_of, negatives_of, own_prompts, rewritten
from keyhole.claims.evidence import ClaimTest, damage, enough
from keyhole.claims.files import document_of, load_claim
from keyhole.claims.heads import everywhere, matches_tests, moves_tests, needs_tests, signal
from keyhole.claims.records import Claim, Matches, Moves, Needs, Suffices
from keyhole.claims.result import ClaimResult, PromptSet, Verdict
from keyhole.claims.suffices import of_template, suffices_tests
from keyhole.edits.checks import require_edits
from keyhole.edits.controls import side_effects
from keyhole.errors import KeyholeError
from keyhole.progress import Progress, part_of, silent
from keyhole.settings.claims import ClaimOptions, ClaimSettings
from keyhole.settings.fields import chosen
from keyhole.strict import quoted
from keyhole.tasks.corpus import filler
from keyhole.tracing.assemble import model_facts
from keyhole.version import __version__

if TYPE_CHECKING:
    from keyhole.models.model import Model

_FIRST = 3  # prompts of each kind that a result quotes
_TESTS: dict[str, Callable[..., list[ClaimTest]]] = {
    "moves": moves_tests,
    "matches": matches_tests,
    "needs": needs_tests,
    "suffices": suffices_tests,
}


def claim(
    model: "Model",
    claim: Claim | Path | str,
    *,
    settings: ClaimSettings | None = None,
    progress: Progress | None = None,
    **options: Unpack[ClaimOptions],
) -> ClaimResult:
    """Does a claim about a model hold? Every effect by removal in the model's own passes, with controls.

    Args:
        model: The model that the claim is about.
        claim: A record (`keyhole.claims.Moves`, `Matches`, `Needs`, `Suffices`), or a file of one: .toml or .json.
        settings: What the tests are held to, in place of the claim's own settings.
        progress: Called with what is done and its total.
        **options: Fields of the settings by name.

    Returns:
        The verdict with every test: its figure, its interval, what was asked of it, and whether it holds.

    >>> import keyhole
    >>> from keyhole.claims import Moves, TaskPrompts
    >>> pronoun = Moves(
    ...     claim="Head 1.5 moves the name to the end, which decides the pronoun",
    ...     prompts=TaskPrompts("pronouns", n=14),
    ...     head=(1, 5),
    ...     src="NAME",
    ... )
    >>> result = keyhole.claim(keyhole.load(), pronoun, draws=19)
    >>> result.verdict, len(result.tests)
    ('passes', 11)
    """
    record = claim if isinstance(claim, Claim) else load_claim(claim)
    record = replace(record, settings=chosen(settings or record.settings, ClaimSettings, options))
    progress = progress or silent
    facts = model_facts(model)
    _require_parts(model, record)
    sets: list[Cases] = []
    verdict, reason, tests = _tested(model, record, sets, progress)
    return ClaimResult(
        claim=record,
        says=record.says,
        document=document_of(record),
        model={name: facts[name] for name in ("name", "family", "fingerprint") if name in facts},
        versions={"keyhole": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        verdict=verdict,
        reason=reason,
        tests=tuple(tests),
        prompts=tuple(_shown(cases) for cases in sets),
    )


def _tested(
    model: "Model", record: Claim, sets: list[Cases], progress: Progress
) -> tuple[Verdict, str, list[ClaimTest]]:
    """The verdict, why there is none, and the tests; `sets` gets the prompts that were used."""
    how = record.settings
    try:
        with model._steady():
            prompts = own_prompts(model, record)
            claimed = cases_of(model, "the claim's prompts", prompts)
            if isinstance(record, Suffices):
                claimed = of_template(record, claimed)
                prompts = [case.example for case in claimed]
                claimed = replace(claimed, cases=tuple(replace(case, number=i) for i, case in enumerate(claimed)))
            sets.append(claimed)
            _require_answers(model, claimed)
            _require_places(record, [claimed])
            progress(1, 6)
            rewrites = rewritten(model, record, prompts, how.seed)
            negatives = negatives_of(model, record, prompts)
            sets += [*rewrites, negatives]
            _require_places(record, [*rewrites, negatives])
            progress(2, 6)
            tests = [enough(len(claimed), claimed.of, how)]
            tests += _TESTS[record.kind](model, record, claimed, rewrites, negatives)
            progress(5, 6)
            if not isinstance(record, Suffices):  # a circuit stands at the tokens of its template
                tests.append(_unrelated(model, record, part_of(progress, 5 / 6, 1.0)))
    except UntestableError as error:
        return "cannot be tested", str(error), []
    progress(6, 6)
    return "passes" if all(test.holds for test in tests) else "fails", "", tests


def _require_answers(model: "Model", claimed: Cases) -> None:
    if len(claimed) < 2 or 2 * len(claimed) < claimed.of:
        raise UntestableError(
            f"{model.name} gives the answer in {len(claimed)} of {claimed.of} prompts: a claim about how it finds the "
            "answer needs prompts that it answers rightly."
        )


def _require_parts(model: "Model", record: Claim) -> None:
    """Refuse a head, channel or writer that the model does not have."""
    if isinstance(record, Suffices):
        return
    assert isinstance(record, Moves | Matches | Needs)
    require_edits(model, everywhere(record))


def _require_places(record: Claim, sets: Sequence[Cases]) -> None:
    """Refuse a role that a prompt does not have, before any pass; and a head that would look ahead."""
    if isinstance(record, Suffices):
        return
    assert isinstance(record, Moves | Matches | Needs)
    for case in (case for cases in sets for case in cases):
        dest, src = case.at(record.dest), case.at(record.src)
        if src > dest:
            raise KeyholeError(
                f"{quoted(record.src)} stands after {quoted(record.dest)} in {quoted(case.example.text)}: a head "
                "attends to what came before."
            )
        if isinstance(record, Needs):
            signal(record, case)


def _unrelated(model: "Model", record: Any, progress: Progress) -> ClaimTest:
    """What the removal does, made at all tokens, to text that the claim says nothing of."""
    how = record.settings
    texts = list(record.unrelated) or filler(how.texts, how.seed)
    try:
        effects = side_effects(model, everywhere(record), texts, progress=progress)
    except KeyholeError as error:
        if record.unrelated:
            raise
        raise UntestableError(
            f"{model.name} cannot read the sentences about everyday things ({error}): give texts, as unrelated."
        ) from error
    return damage(effects.kl, len(texts), effects.tokens, how)


def _shown(cases: Cases) -> PromptSet:
    first = tuple(case.example.text for case in cases.cases[:_FIRST])
    return PromptSet(cases.name, len(cases), cases.of, first)
