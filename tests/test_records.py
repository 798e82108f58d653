"""What notebooks print: records are short, whatever they hold."""

from typing import Any

import pytest

import keyhole
from contrasts import box_contrast
from keyhole.brief import brief
from keyhole.features.contrast import collect, find_features
from keyhole.features.discovery.all_heads import survey
from keyhole.features.discovery.keys import View
from keyhole.qk.controls import rotation_control, slice_use
from keyhole.tasks import documents

PROMPT = "When Mary and John went to the store, John gave a drink to"
LONGEST = 1000


@pytest.fixture(scope="module")
def records(organism: keyhole.Model) -> dict[str, Any]:
    run = organism.run(PROMPT)
    circuit = run.trace("Mary", against="John")
    seen = collect(organism, box_contrast(50, 3))
    return {
        "run": run,
        "layer": run.layers[0],
        "attention": run.attention_run(0),
        "channels": run.channels((1, 6), src="Mary"),
        "control": rotation_control(run, (1, 6), src="Mary"),
        "slices": slice_use([run], (1, 6), firing=False),
        "firing": run.explain((3, 6)),
        "writers": run.writers(3, -1),
        "circuit": circuit,
        "verification": circuit.verify(draws=1, edges=False),
        "check": keyhole.check(organism),
        "samples": seen,
        "features": find_features(seen, half=0, permutations=19),
        "survey": survey(organism, [text for text in documents(60) if len(text) < 350], view=View()),
    }


def test_records_are_short_and_name_themselves(records: dict[str, Any]) -> None:
    for name, record in records.items():
        told = repr(record)
        assert len(told) <= LONGEST and type(record).__name__ in told, (name, len(told), told[:200])
        assert "tensor(" not in told and "\n" not in told, name


def test_what_matters_is_in_it(records: dict[str, Any]) -> None:
    assert repr(records["circuit"]).startswith("<Circuit of organism: 'Mary' (probability 1) against 'John'")
    assert "head 3.6, 14:to <- 11:gave: attention 0.891" in repr(records["firing"])
    assert "15 tokens, 'When Mary and John" in repr(records["run"])
    assert "relative_terms=float32[16]" in repr(records["channels"])


def test_collections_in_a_record() -> None:
    from keyhole.tracing.batch import Untraced

    error = keyhole.KeyholeError("no")
    assert brief(Untraced(1, "x" * 200, error)).count("x") < 100
    node = keyhole.circuits.circuit.Node("mlp", 1, None, 2, 2)
    assert brief(node) == repr(node)
