"""Look where I say: which tokens are meant, which heads are edited, and what they do with the marked keys then."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import keyhole
from commands import keyhole as typed
from conftest import tiny_model
from keyhole import KeyholeError, Model, cache
from keyhole.edits import At, FeatureEdit
from keyhole.edits.files import to_json
from keyhole.features import focus as module
from keyhole.features.focus import read_features, retrieval_features, span_tokens
from tiny import Sizes, tiny

PROMPT = "Here is a list: apple, horse, coffee, truck. Find the animals:"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEYHOLE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def features(organism: Model) -> tuple[FeatureEdit, ...]:
    return retrieval_features(organism)


def rotary_model(organism: Model, seed: int) -> Model:
    sizes = Sizes(vocab=len(organism.tokenizer), seed=seed)
    return keyhole.load((tiny("llama", sizes), organism.tokenizer))


@pytest.mark.parametrize(
    ("span", "tokens"),
    [("horse", (8,)), (" horse ", (8,)), ("apple, horse", (6, 7, 8)), (6, (6,)), ([-1, 2, 2], (2, 17))],
)
def test_a_span_is_a_text_or_positions(organism: Model, span: Any, tokens: tuple[int, ...]) -> None:
    ids = organism.run(PROMPT).token_ids
    assert span_tokens(organism, PROMPT, span) == tokens
    if not isinstance(span, str):
        assert span_tokens(organism, list(ids), span, bos=False) == tokens
    assert {edit.src for edit in keyhole.focus(organism, PROMPT, span)} == {At(tokens)}


@pytest.mark.parametrize(
    ("prompt", "span", "message"),
    [
        (PROMPT, "zebra", "the span 'zebra' is not in the prompt"),
        (PROMPT, ",", "the span ',' stands in the prompt more than once"),
        (PROMPT, " ", "the span is empty"),
        (PROMPT, [], "the span has no token"),
        (PROMPT, 99, "the span names token 99, but the prompt has 18 tokens"),
        (PROMPT, 2.5, "the span is a text of the prompt or token positions, not 2.5"),
        (PROMPT, [1, 2.5], "the span names token 2.5, but"),
        ([2, 3, 4], "horse", "the prompt is token ids, in which 'horse' cannot be found"),
    ],
)
def test_a_span_that_is_none_is_refused_in_one_sentence(organism: Model, prompt: Any, span: Any, message: str) -> None:
    with pytest.raises(KeyholeError, match=message) as refused:
        keyhole.focus(organism, prompt, span)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": float("nan")}, "strength is nan"),
        ({"heads": []}, "there are no heads to edit"),
        ({"heads": [(9, 0)]}, "there is no head 9.0: organism has 8 heads"),
        ({"heads": [3]}, "a head is a layer and a number"),
    ],
)
def test_wrong_strengths_and_heads_are_refused(organism: Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyholeError, match=message):
        keyhole.focus(organism, PROMPT, "horse", **options)


def test_retrieval_heads_look_at_what_is_asked_for(organism: Model, features: tuple[FeatureEdit, ...]) -> None:
    run = organism.run(PROMPT)
    best = features[0].head
    assert int(run.pattern(best[0])[best[1], -1].argmax()) == 8
    assert len({feature.head for feature in features}) == len(features) == 4  # one in twenty of 32, but four at least
    for feature in features:
        assert (feature.side, feature.factor, feature.model) == ("src", 1.0, organism.fingerprint())
        assert feature.src.everywhere and feature.frame == "pre_rope"


def test_edits_are_what_they_say(organism: Model, features: tuple[FeatureEdit, ...]) -> None:
    edits = keyhole.focus(organism, PROMPT, "horse", strength=3)
    assert edits == tuple(replace(feature, factor=3, src=At((8,))) for feature in features)


def twice_as(edit: FeatureEdit) -> FeatureEdit:
    """Adds twice of what the edit adds."""
    return replace(edit, factor=1 + 2 * (edit.factor - 1))


def logit_ratios(run: keyhole.Run, other: keyhole.Run, head: tuple[int, int]) -> Tensor:
    """How much each key's score changed, for the queries from token 9 on; relative to that of the first key."""
    before, after = (x.pattern(head[0])[head[1]].double().log() for x in (run, other))
    change = (after - before)[9:, :9]
    return change - change[:, :1]


@pytest.mark.parametrize("rotary", [False, True])
def test_scores_of_marked_keys_grow_by_their_part_in_the_feature(organism: Model, rotary: bool) -> None:
    """In the first layer, whose queries and keys no other edit changes."""
    model = rotary_model(organism, 0) if rotary else organism
    head = (model.attention_layers[0], 1)
    (edit,) = keyhole.focus(model, PROMPT, "horse", strength=3, heads=[head])
    (plain,) = keyhole.focus(model, PROMPT, "horse", strength=1, heads=[head])
    assert edit.head == head and len(edit.basis) >= 1
    run = model.run(PROMPT)
    assert torch.equal(run.with_edits([plain]).logits, run.logits)  # factor 1 changes nothing, to the bit
    ratios = [logit_ratios(run, other, head) for other in (run.with_edits([edit]), run.with_edits([twice_as(edit)]))]
    assert (ratios[0].abs() > 1e-4).any(0).nonzero()[:, 0].tolist() == [8]
    assert torch.allclose(ratios[1], 2 * ratios[0], atol=1e-3)


def test_features_are_found_once_and_kept_by_weights(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "cache"))
    calls: list[Any] = []
    original = module._find
    monkeypatch.setattr(module, "_find", lambda *args: calls.append(args) or original(*args))
    model, other = rotary_model(organism, 0), rotary_model(organism, 1)
    found = retrieval_features(model, [(1, 0)])
    assert retrieval_features(model, [(1, 0)]) == found and len(calls) == 1
    assert retrieval_features(rotary_model(organism, 0), [(1, 0)]) == found and len(calls) == 1
    assert retrieval_features(other, [(1, 0)]) != found and len(calls) == 2
    assert retrieval_features(model, [(1, 1)])[0].head == (1, 1) and len(calls) == 3
    with pytest.raises(KeyholeError, match="was made for other weights"):
        other.run(PROMPT).with_edits(found)


def test_kept_features_are_read_strictly(
    organism: Model, features: tuple[FeatureEdit, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of other weights, or with anything else in it, is refused; in the cache it is made anew."""
    path = tmp_path / "features.json"
    good = json.loads(to_json(features, organism))
    wrong = [
        good | {"schema": 9},
        good | {"edits": []},
        good | {"edits": [good["edits"][0] | {"model": "another"}]},
        good | {"edits": [good["edits"][0] | {"side": "dest"}]},
        good | {"edits": [{"kind": "channels", "head": [0, 0], "channels": [0]}]},
    ]
    for document in wrong:
        path.write_text(json.dumps(document))
        with pytest.raises(KeyholeError):
            read_features(path, organism)
    path.write_text(json.dumps(good))
    assert read_features(path, organism) == features

    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_find", lambda *args: features)
    assert retrieval_features(organism) == features
    (entry,) = cache.entries()
    cache.remove(entry.path)

    def of_another(folder: Path) -> None:
        (folder / "features.json").write_text(json.dumps(wrong[2]))

    cache.keep(entry.name, entry.title, {}, size=1, write=of_another)
    assert retrieval_features(organism) == features
    assert read_features(cache.entries()[0].path / "features.json", organism) == features


def test_a_model_without_retrieval_heads_is_refused(organism: Model) -> None:
    with pytest.raises(KeyholeError, match=r"has no retrieval head: .* Name heads by `heads=`"):
        keyhole.focus(rotary_model(organism, 2), PROMPT, "horse")


def test_a_model_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(KeyholeError, match="has no tokenizer"):
        keyhole.focus(tiny_model("gpt2"), [1, 2, 3], [0])


def test_chats_are_searched_as_their_template_writes_them(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(organism.tokenizer, "chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": PROMPT}]
    assert span_tokens(organism, messages, "horse") == (7,)  # no <bos>, which this template does not write


def test_the_command_compares_both_answers() -> None:
    result = typed("generate", PROMPT, "--focus", "horse", "--strength", "3", "--max-new-tokens", "1", "--json")
    assert result.returncode == 0, result.stderr
    edits = json.loads(result.stdout)["edits"]
    assert len(edits) == 4
    assert {(edit["kind"], edit["factor"], *edit["src"]["tokens"]) for edit in edits} == {("feature", 3.0, 8)}
    refused = typed("generate", PROMPT, "--focus", "zebra", "--max-new-tokens", "1")
    assert refused.returncode and "'zebra' is not in the prompt" in refused.stderr
