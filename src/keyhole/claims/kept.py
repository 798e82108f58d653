"""Where are results of claims kept? As JSON files; beside a store in its folder claims/, whole or not at all."""

import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from keyhole.claims.evidence import ClaimTest
from keyhole.claims.files import claim_of
from keyhole.claims.result import SCHEMA, ClaimResult, PromptSet, Verdict
from keyhole.errors import KeyholeError
from keyhole.files import is_folder, json_text, require_folder, write_at_once
from keyhole.store.store import Store, open_store
from keyhole.strict import parse_json, quoted, read, read_text, require, require_fields, shortened

FOLDER = "claims"
_KEYS = ("schema", "claim", "says", "model", "versions", "verdict", "reason", "tests", "prompts")
_NUMBERS = ("figure", "low", "high")


def keep_claim(store: Store | Path | str, result: ClaimResult) -> Path:
    """Keep a result beside a store of the same model, as a file that is named after the claim.

    Args:
        store: The store, or its folder.
        result: What `keyhole.claim` returned. The same claim of the same model has one file, the latest.

    >>> from tempfile import mkdtemp
    >>> import keyhole
    >>> from keyhole.claims import Moves, TaskPrompts
    >>> model, folder = keyhole.load(), mkdtemp()
    >>> claim = Moves(claim="Head 1.5 moves it", prompts=TaskPrompts("pronouns", n=1), head=(1, 5), src="NAME")
    >>> result = keyhole.claim(model, claim)
    >>> store = keyhole.bulk("pronouns", model, n=1, out=folder + "/pronouns.store")
    >>> print(keep_claim(store, result).name.rpartition("-")[0])
    head-1-5-moves-it
    """
    store = store if isinstance(store, Store) else open_store(store)
    of_store, of_result = store.manifest.model.get("fingerprint"), result.model.get("fingerprint")
    if of_store != of_result:
        raise KeyholeError(
            f"{store.path} is a store of {quoted(store.manifest.model.get('name'))}, and the claim was tested on other "
            f"weights ({quoted(result.model.get('name'))}): keep it beside a store of its own model."
        )
    folder = require_folder(store.path / FOLDER)
    identity = hashlib.sha256(json_text({"claim": result.document, "model": of_result}).encode()).hexdigest()[:12]
    words = re.sub(r"[^a-z0-9]+", "-", result.claim.claim.lower()).strip("-")[:48].rstrip("-")
    path = folder / f"{words or 'claim'}-{identity}.json"
    write_at_once(path, json_text(result.record()) + "\n")
    return path


def kept_claims(store: Store | Path | str) -> tuple[ClaimResult, ...]:
    """The results that are kept beside a store, in the order of their names.

    Args:
        store: The store, or its folder.

    >>> from tempfile import mkdtemp
    >>> import keyhole
    >>> from keyhole.claims import Moves, TaskPrompts
    >>> model, folder = keyhole.load(), mkdtemp()
    >>> claim = Moves(claim="Head 1.5 moves it", prompts=TaskPrompts("pronouns", n=1), head=(1, 5), src="NAME")
    >>> result = keyhole.claim(model, claim)
    >>> store = keyhole.bulk("pronouns", model, n=1, out=folder + "/pronouns.store")
    >>> path = keep_claim(store, result)
    >>> [kept.claim.claim for kept in kept_claims(store)]
    ['Head 1.5 moves it']
    """
    root = store.path if isinstance(store, Store) else open_store(store).path
    folder = root / FOLDER
    return tuple(load_result(path) for path in sorted(folder.glob("*.json"))) if is_folder(folder) else ()


def load_result(path: Path | str) -> ClaimResult:
    """A result that was saved as JSON.

    Args:
        path: The file.

    >>> from tempfile import mkdtemp
    >>> import keyhole
    >>> from keyhole.claims import Moves, TaskPrompts
    >>> model, folder = keyhole.load(), mkdtemp()
    >>> claim = Moves(claim="Head 1.5 moves it", prompts=TaskPrompts("pronouns", n=1), head=(1, 5), src="NAME")
    >>> result = keyhole.claim(model, claim)
    >>> load_result(result.save(folder + "/result.json")).verdict
    'cannot be tested'
    """
    try:
        return result_of(parse_json(read_text(path)))
    except KeyholeError as error:
        raise KeyholeError(f"{shortened(str(path))} has no result of a claim that can be read: {error}") from error


def result_of(document: Any) -> ClaimResult:
    """A result from plain data; its verdict must be the one that its tests give.

    Args:
        document: The data, as `ClaimResult.record` has it.
    """
    require_fields(document, _KEYS, "a result")
    require(
        document["schema"] == SCHEMA, f"its schema is {quoted(document['schema'])}, and this version reads {SCHEMA}."
    )
    claim, tests = claim_of(document["claim"]), document["tests"]
    require(isinstance(tests, list), "tests is no list.")
    read_tests = tuple(_test(test, f"tests[{i}]") for i, test in enumerate(tests))
    verdict: Verdict = read(Verdict, document["verdict"], "verdict")  # type: ignore[arg-type]
    follows = all(test.holds for test in read_tests) if verdict == "passes" else any(not t.holds for t in read_tests)
    tested = bool(read_tests) and follows if verdict != "cannot be tested" else not read_tests
    require(tested, f"its verdict is {quoted(verdict)}, which does not follow from its tests.")
    return ClaimResult(
        claim=claim,
        says=read(str, document["says"], "says"),
        document=json.loads(json_text(document["claim"])),
        model=read(dict[str, Any], document["model"], "model"),
        versions=read(dict[str, str], document["versions"], "versions"),
        verdict=verdict,
        reason=read(str, document["reason"], "reason"),
        tests=read_tests,
        prompts=read(tuple[PromptSet, ...], document["prompts"], "prompts"),
    )


def _test(value: Any, where: str) -> ClaimTest:
    """A test, with NaN for what JSON writes as null."""
    unknown = [name for name in _NUMBERS if isinstance(value, dict) and value.get(name, 0.0) is None]
    test = read(ClaimTest, value | dict.fromkeys(unknown, 0.0) if unknown else value, where)
    return replace(test, **dict.fromkeys(unknown, math.nan))  # type: ignore[arg-type]
