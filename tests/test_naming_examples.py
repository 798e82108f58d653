"""Are examples what they are said to be? Against a slow look at every pair, and whatever is read together."""

import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

import keyhole
from commands import keyhole as typed
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError, Model
from keyhole.circuits.records import Signal
from keyhole.features.discovery.keys import View
from keyhole.features.discovery.one_head import head_features
from keyhole.models.tokens import text_ids
from keyhole.naming.corpus import gather as gathering
from keyhole.naming.corpus.corpus import chunks
from keyhole.naming.corpus.gather import gather, where
from keyhole.naming.corpus.state import NEVER, ROW, Amounts, Kept, mixed, nth, salt, tickets, which
from keyhole.naming.naming import random_subjects
from keyhole.naming.subjects import (
    channel_subjects,
    contrast_subjects,
    discovered_subjects,
    opposite,
    signal_subjects,
    store_subjects,
)
from keyhole.naming.subjects.operands import read_what
from keyhole.naming.subjects.subject import Examples, Shown, Subject, paired
from keyhole.qk.firings import dynamic_tau
from keyhole.qk.omega import omega
from keyhole.tasks import documents
from keyhole.tracing.why import signal_vector
from stores import stored
from tiny import Sizes

FEW = Amounts(top=6, per_decile=2, random=5, hard=3)
PROMPT = "When Mary and John went to the store, John gave a drink to"


def subjects_of(model: Model, n: int = 12, seed: int = 0) -> list[Subject]:
    generator, dims = torch.Generator().manual_seed(seed), model.dims
    found = []
    for i in range(n):
        query, key = torch.randn(2, dims.d_head, generator=generator)
        head = (model.attention_layers[i % len(model.attention_layers)], i % dims.heads)
        found.append(Subject(f"s{i}", "random", head, query, key, 0.1 * i, -0.2))
    return found


def texts_of(model: Model, n: int = 90, seed: int = 0) -> list[list[int]]:
    """Short texts of few words, so that token pairs come again; every sixth begins as another does."""
    rng = random.Random(seed)
    texts = [[rng.randrange(2, 14) for _ in range(rng.randint(6, 12))] for _ in range(n)]
    for i in range(5, n, 6):
        texts[i][:5] = texts[i - 3][:5]
    return texts


@dataclass(frozen=True)
class Pair:
    chunk: int
    dest: int
    src: int
    value: float
    attention: float
    visible: int


def every_pair(model: Model, subject: Subject, texts: list[list[int]]) -> list[Pair]:
    """The oracle: all visible pairs of all texts, one by one."""
    found = []
    layer, head = subject.head
    for chunk, run in enumerate(model.run_many(texts)):
        record, weights = run.attention_run(layer), run.pattern(layer)[head].tolist()
        asks = (record.q[head] @ subject.query + subject.query_offset).tolist()
        offers = (record.k[record.kv(head)] @ subject.key + subject.key_offset).tolist()
        for d, first in enumerate(record.first.tolist()):
            for s in range(first, d + 1):
                value = asks[d] * offers[s] if asks[d] > 0 and offers[s] > 0 else 0.0
                found.append(Pair(chunk, d, s, value, weights[d][s], d + 1 - first))
    return found


def about_equal(value: float) -> float:
    """To 14 binary digits, the last one rounded half up."""
    mantissa, exponent = math.frexp(value)
    return math.floor(mantissa * 2**14 + 0.5) / 2**14 * 2.0**exponent


def best(pairs: list[Pair], texts: list[list[int]], top: int) -> list[Pair]:
    """Each dest's best src, each text's two best dests, no text up to dest twice, the largest values first."""
    by_dest: dict[tuple[int, int], Pair] = {}
    for one in sorted(pairs, key=lambda p: (-about_equal(p.value), p.src)):
        if one.value > 0:
            by_dest.setdefault((one.chunk, one.dest), one)
    ranked = sorted(by_dest.values(), key=lambda p: (-about_equal(p.value), p.chunk, p.dest))
    counts, seen, found = dict.fromkeys(range(len(texts)), 0), set(), []
    for one in ranked:
        counts[one.chunk] += 1
        same = (tuple(texts[one.chunk][: one.dest + 1]), one.src)
        if counts[one.chunk] <= 2 and same not in seen:
            seen.add(same)
            found.append(one)
    return found[:top]


def place(one: Shown | Pair) -> tuple[int, int, int]:
    return one.chunk, one.dest, one.src


@pytest.mark.parametrize("variant", ["llama", "mistral", "gemma2", "llama-dynamic"])
def test_examples_are_those_of_a_slow_look_at_every_pair(variant: str) -> None:
    model = tiny_model(variant)
    texts, subjects = texts_of(model, 36), subjects_of(model, 4)
    for subject, found in zip(subjects, gather(model, subjects, texts, amounts=FEW), strict=True):
        pairs = every_pair(model, subject, texts)
        truth = {place(one): one for one in pairs}
        assert found.subject is subject and (found.chunks, found.tokens) == (36, sum(map(len, texts)))
        assert [place(one) for one in found.of("top")] == [place(one) for one in best(pairs, texts, FEW.top)]
        for one in found.shown:
            assert place(one) in truth  # so it was visible
            same = truth[place(one)]
            assert one.value == pytest.approx(same.value, rel=1e-4, abs=1e-4)
            assert one.attention == pytest.approx(same.attention, rel=1e-4, abs=1e-6)
            assert one.tokens == tuple(map(str, texts[one.chunk]))
        assert found.positive == sum(p.value > 0 for p in pairs) / len(pairs)
        _check_negatives(found, truth, texts)


def _check_negatives(found: Examples, truth: dict[tuple[int, int, int], Pair], texts: list[list[int]]) -> None:
    top = found.of("top")
    words = {(texts[one.chunk][one.dest], texts[one.chunk][one.src]) for one in top}
    for one in found.of("same pair", "other channels", "wrong src"):
        assert one.value <= 0.1 * min(t.value for t in top) + 1e-6
    assert all((texts[one.chunk][one.dest], texts[one.chunk][one.src]) in words for one in found.of("same pair"))
    for one in found.of("other channels"):
        assert one.src > 0 and one.attention >= dynamic_tau(truth[place(one)].visible) - 1e-6
    assert {(one.chunk, one.dest) for one in found.of("wrong src")} <= {(one.chunk, one.dest) for one in top}
    assert not {place(one) for one in found.of("wrong src")} & {place(one) for one in top}
    shown = [(tuple(texts[one.chunk][: one.dest + 1]), one.src) for one in found.shown]
    assert len(set(shown)) == len(shown)


def test_all_kinds_of_examples_are_found_where_there_are_many() -> None:
    model = tiny_model("llama")
    for found in gather(model, subjects_of(model, 6), texts_of(model, 150), amounts=FEW):
        kinds = [one.pick for one in found.shown]
        assert kinds.count("top") == 6 and kinds.count("random") == 5
        assert [one.decile for one in found.of("decile")] == [d for d in range(10) for _ in range(2)]
        assert kinds.count("wrong src") == kinds.count("other channels") == kinds.count("same pair") == 3


def test_hard_negatives_are_quiet() -> None:
    """At most a tenth of any top value, and at most the median positive one, whichever is less."""
    model = tiny_model("llama")
    texts, bounds, positive = texts_of(model, 240), set(), 0
    for top in (1, 400):
        for found in gather(model, subjects_of(model, 3), texts, amounts=Amounts(top, 4, 0, 40)):
            values = [p.value for p in every_pair(model, found.subject, texts) if p.value > 0]
            tenth, median = 0.1 * min(one.value for one in found.of("top")), float(np.median(values))
            hard = [one.value for one in found.of("same pair", "other channels", "wrong src")]
            # The median is that of a sample: one pair of each text.
            assert len(hard) > 20 and max(hard) <= min(tenth, float(np.quantile(values, 0.58)))
            bounds.add(tenth < median)
            positive += sum(value > 0 for value in hard)
    assert bounds == {True, False} and positive > 20  # either was the less, and not all are zero


def test_examples_do_not_depend_on_what_is_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    texts, subjects = texts_of(model), subjects_of(model)
    whole = gather(model, subjects, texts, amounts=FEW)
    assert [one.shown for one in gather(model, subjects, texts, amounts=FEW)] == [one.shown for one in whole]
    monkeypatch.setattr(gathering, "_BATCH", 7)
    others = gather(model, subjects, texts, amounts=FEW), gather(model, subjects[3:4], texts, amounts=FEW)
    for one, other in [*zip(whole, others[0], strict=True), (whole[3], others[1][0])]:
        assert [(place(s), s.pick, s.decile) for s in one.shown] == [(place(s), s.pick, s.decile) for s in other.shown]
        assert [s.value for s in one.shown] == pytest.approx([s.value for s in other.shown], rel=1e-4)
        assert one.positive == other.positive
    drawn = [place(s) for s in gather(model, subjects[3:4], texts, amounts=FEW, seed=1)[0].of("random")]
    assert drawn != [place(s) for s in whole[3].of("random")]


def test_two_negatives_match_only_when_asked_for() -> None:
    model = tiny_model("gpt2")
    texts, one = texts_of(model, 30), subjects_of(model, 1)[0]
    both = gather(model, [one, opposite(one)], texts, amounts=FEW)
    [pairs, turned] = [every_pair(model, subject, texts) for subject in (one, opposite(one))]
    assert all(a.value == 0 or b.value == 0 for a, b in zip(pairs, turned, strict=True))
    assert [place(s) for s in both[1].of("top")] == [place(s) for s in best(turned, texts, FEW.top)]


def test_random_pairs_are_uniform_and_deciles_are_those_of_all_positive_values() -> None:
    model = tiny_model("gpt2", Sizes(layers=1))
    rng = random.Random(0)
    texts = [[rng.randrange(61) for _ in range(8)] for _ in range(1500)]
    subject = subjects_of(model, 1)[0]
    [found] = gather(model, [subject], texts, amounts=Amounts(4, 12, 360, 0))
    drawn = [one.dest * (one.dest + 1) // 2 + one.src for one in found.of("random")]
    counts = np.bincount(drawn, minlength=36)
    # Two texts of one beginning are one example, which takes a few away.
    assert len(counts) == 36 and counts.sum() > 350 and scipy.stats.chisquare(counts).pvalue > 0.01
    assert len({one.chunk for one in found.of("random")}) == counts.sum()  # a text gives one
    values = np.sort([p.value for p in every_pair(model, subject, texts[:400]) if p.value > 0])
    for one in found.of("decile"):
        assert one.decile is not None
        rank = np.searchsorted(values, one.value) / len(values)
        assert one.decile / 10 - 0.07 < rank < (one.decile + 1) / 10 + 0.07
    assert len(found.of("decile")) == 120


def test_draws_are_fair() -> None:
    assert nth(torch.tensor([[0, 2, 0, 3]]).expand(5, -1), torch.arange(5))[0].tolist() == [1, 1, 3, 3, 3]
    assert nth(torch.tensor([[0, 2, 0, 3]]).expand(5, -1), torch.arange(5))[1].tolist() == [0, 1, 0, 1, 2]
    counts = np.tile([1, 3], (4000, 1)).reshape(-1)[:, None]  # every second text has three times as many pairs
    first = [np.argsort(tickets(salt(i)[None], np.arange(8000), counts)[:, 0])[:200] % 2 for i in range(10)]
    assert np.mean(first) == pytest.approx(0.75, abs=0.03)
    assert (tickets(salt(0)[None], np.arange(3), np.zeros((3, 1), int)) == NEVER).all()
    picks = which(np.full(3000, salt(1)), np.arange(3000), np.full(3000, 3))
    assert scipy.stats.chisquare(np.bincount(picks, minlength=3)).pvalue > 0.01


def test_what_is_kept_are_the_smallest_keys_and_no_text_twice() -> None:
    rng = np.random.default_rng(0)
    kept = Kept.empty(7, 5, ROW | {"text": np.uint64})
    rows: list[tuple[int, int, int, int]] = []
    for _ in range(60):
        n = int(rng.integers(1, 9))
        subject, key = rng.integers(0, 6, n), rng.integers(0, 2**60, n).astype(np.uint64)
        text, src = rng.integers(0, 12, n).astype(np.uint64), rng.integers(0, 2, n)
        zero = np.zeros(n)
        kept.add(subject, key, {**dict.fromkeys(ROW, zero), "chunk": np.arange(n), "src": src, "text": text})
        rows += zip(*(x.tolist() for x in (subject, key, text, src)), strict=True)
    kept.settle()
    for subject in range(7):
        first: dict[tuple[int, int], int] = {}
        for _, key, text, src in sorted(row for row in rows if row[0] == subject):
            first.setdefault((text, src), key)
        expected = sorted(first.values())[:5]
        assert kept.key[subject].tolist() == expected + [int(NEVER)] * (5 - len(expected))
    assert len(set(mixed(np.arange(1000, dtype=np.uint64)).tolist())) == 1000


def test_a_pass_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    model = tiny_model("llama")
    texts, subjects = texts_of(model), subjects_of(model)
    whole = gather(model, subjects, texts, amounts=FEW)
    gather(model, subjects, texts, amounts=FEW, tokens=300, folder=tmp_path)
    again = gather(model, subjects, texts, amounts=FEW, folder=tmp_path)
    for one, other in zip(whole, again, strict=True):
        assert [(place(s), s.pick) for s in one.shown] == [(place(s), s.pick) for s in other.shown]
        assert (one.chunks, one.tokens, one.positive) == (other.chunks, other.tokens, other.positive)
    for changed, reason in [
        ({"subjects": subjects[:3]}, "subjects was '12"),
        ({"subjects": [replace(subjects[0], key_offset=9.0), *subjects[1:]]}, "subjects was"),
        ({"model": tiny_model("gpt2")}, "model was"),
        ({"length": 8}, "length was 32, now 8"),
        ({"seed": 5}, "seed was 0, now 5"),
        ({"amounts": replace(FEW, top=9)}, "top was 6, now 9"),
        ({"corpus": [*texts[:7], [2, 2, 2, 2], *texts[8:]]}, "another corpus: its first 90 chunks"),
        ({"corpus": texts[:7]}, "it had 90 chunks so far, this one has 7"),
    ]:
        asked = {"model": model, "subjects": subjects, "corpus": texts, "amounts": FEW, **changed}
        with pytest.raises(KeyholeError, match=reason):
            gather(**asked, folder=tmp_path)  # type: ignore[arg-type]
    (tmp_path / "examples.npz").write_bytes(b"PK torn")
    with pytest.raises(KeyholeError, match="damaged"):
        gather(model, subjects, texts, amounts=FEW, folder=tmp_path)


def test_bad_subjects_and_amounts_are_refused() -> None:
    model = tiny_model("gpt2")
    one = subjects_of(model, 1)[0]
    for subjects, reason in [
        ([], "no subjects to find"),
        ([one, one], "2 subjects have the id 's0'"),
        ([replace(one, head=(0, 9))], "no head 0.9"),
        ([replace(one, query=one.query[:3], key=one.key[:3])], "directions of 3"),
        ([replace(one, key=one.key * math.nan)], "NaN"),
    ]:
        with pytest.raises(KeyholeError, match=reason):
            gather(model, subjects, texts_of(model, 3))
    with pytest.raises(KeyholeError, match="top is -1 examples"):
        Amounts(top=-1)
    with pytest.raises(KeyholeError, match="tokens is 0, but should be at least 1"):
        gather(model, [one], texts_of(model, 3), tokens=0)
    with pytest.raises(KeyholeError, match="no tokenizer: give a corpus of token ids"):
        gather(model, [one])


# -- the corpus ----------------------------------------------------------------------------------------------------


def test_text_comes_in_chunks_that_begin_as_the_model_expects(organism: Model, tmp_path: Path) -> None:
    lines = documents(40, seed=2)
    for name, text in (("lines.txt", "\n".join(lines)), ("whole.txt", " ".join(lines))):
        (tmp_path / name).write_text(text)
        found = list(chunks(organism, tmp_path / name, length=16))
        assert all(len(ids) == 16 and ids[0] == organism.tokenizer.bos_token_id for ids in found)
        read = [i for ids in found for i in ids[1:]]
        assert tuple(read) == text_ids(organism, " ".join(lines))[: len(read)]
        assert len(text_ids(organism, " ".join(lines))) - len(read) < 15
    (tmp_path / "two.jsonl").write_text(
        '{"text": "Mary went to the store"}\n\n{"prompt": "Mary and John", "target": "x"}\n'
    )
    told = [organism.tokenizer.decode(ids) for ids in chunks(organism, str(tmp_path / "two.jsonl"))]
    assert told == ["<bos> Mary went to the store"]  # three words are too few
    assert len(list(chunks(organism, ["Mary went to the store"] * 9, limit=4))) == 4
    long = list(chunks(organism, [lines[0] + " " + lines[1] + " " + lines[2]], length=8))
    assert len(long) > 2 and all(ids[0] == organism.tokenizer.bos_token_id for ids in long)


def test_a_line_of_any_length_is_read_without_a_word_lost(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyhole.naming.corpus.corpus._BLOCK", 37)
    text = " ".join(documents(5, seed=1))
    (tmp_path / "whole.txt").write_text(text)
    (tmp_path / "whole.jsonl").write_text(json.dumps({"text": text}))
    found = [i for ids in chunks(organism, tmp_path / "whole.txt", length=9) for i in ids[1:]]
    assert tuple(found) == text_ids(organism, text)[: len(found)] and len(found) > 50
    found = [i for ids in chunks(organism, tmp_path / "whole.jsonl", length=9) for i in ids[1:]]
    assert tuple(found) == text_ids(organism, text)[: len(found)] and len(found) > 50


def test_the_organism_reads_text_of_its_tasks(organism: Model) -> None:
    found = list(chunks(organism, limit=300, length=24))
    assert found == list(chunks(organism, limit=300, length=24)) and len(set(found)) > 280
    assert found[:50] != list(chunks(organism, limit=50, length=24, seed=1))
    assert all(4 <= len(ids) <= 24 for ids in found)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", "Mary went\nto the marmalade store", "line 1: organism does not know 'marmalade'"),
        ("a.txt", "", "no text of 32 tokens"),
        ("a.jsonl", '{"text": "Mary went to the store"}\n{"no": 1}', 'line 2: a line is an object with text in "text"'),
        ("a.jsonl", "[1, 2", "line 1: it is not valid JSON"),
        ("a.txt", None, "there is no file"),
    ],
)
def test_a_bad_corpus_is_refused(organism: Model, tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(KeyholeError, match=reason):
        list(chunks(organism, tmp_path / name))


def test_lengths_ids_and_datasets_are_refused_with_a_reason(organism: Model, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match="length is 3 tokens: organism takes chunks of 4 to 128"):
        chunks(organism, length=3)
    with pytest.raises(KeyholeError, match="length is 129 tokens: organism takes chunks of 4 to 128"):
        chunks(organism, length=129)
    with pytest.raises(KeyholeError, match="text 1: organism has token ids from 0 to 480"):
        list(chunks(organism, [[1, 2, 3, 4], [1, 2, 3, 999]]))
    with pytest.raises(KeyholeError, match="hf:nobody/nothing"):
        list(chunks(organism, "hf:nobody/nothing"))
    (tmp_path / "b.txt").write_bytes(b"Mary went\n\xff\xfe to the store")
    with pytest.raises(KeyholeError, match="cannot read"):
        list(chunks(organism, tmp_path / "b.txt"))


# -- what is named -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def circuit(organism: Model) -> keyhole.Circuit:
    return organism.run(PROMPT).trace("Mary", against="John", through="heads")


def test_a_signal_is_worth_the_product_of_two_projections_in_residual_space(
    organism: Model, circuit: keyhole.Circuit
) -> None:
    """(x_d . s_u)(x_s . s_v) with s_u and s_v from the residual stream's side; the organism does not rotate."""
    run = circuit.run
    assert run is not None
    subjects, sides = signal_subjects(circuit), set()
    assert len(subjects) > 10
    for subject in subjects:
        edge, (layer, head) = circuit.edges[int(subject.about["edge"])], subject.head
        sides.add(edge.side)
        into = circuit.nodes[edge.receiver]
        firing = run.explain((layer, head), into.dest, into.src)
        signal = Signal(circuit.nodes[edge.sender].writer, edge.side, edge.channels)  # type: ignore[arg-type]
        w, record = organism.folded(layer), run.attention_run(layer)
        vector, Omega = signal_vector(firing, signal).double(), (w.W_Q[head] @ w.W_K[head].T).double()
        s_u, s_v = (vector, Omega.T @ vector) if edge.side == "dest" else (Omega @ vector, vector)
        x = run.layers[layer].resid.double() / record.norm_scale[:, None].double()
        asked, offered = (record.q[head] - w.b_Q[head]), (record.k[head] - w.b_K[head])
        torch.testing.assert_close((asked @ subject.query).double(), x @ s_u / s_u.norm(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close((offered @ subject.key).double(), x @ s_v / s_v.norm(), rtol=1e-3, atol=1e-4)
    assert sides == {"dest", "src"} and len({one.id for one in subjects}) == len(subjects)


@pytest.mark.parametrize("side", ["dest", "src"])
def test_pairs_of_a_model_with_rope_and_shared_keys(side: str) -> None:
    model = tiny_model("llama")
    run, om = model.run(prompts_of(model, 9)[0]), omega(model, 1)
    c, ks, head = torch.tensor([0.5, -2.0]), [1, 4], 3
    query, key, *offsets = paired(model, (1, head), side, ks, coordinates=c)  # type: ignore[arg-type]
    assert offsets == [0.0, 0.0]
    u, v, sigma = om.u(head)[:, ks], om.v(head)[:, ks], om.sigma[head, ks]
    s_u, s_v = (u @ (c / sigma), v @ c) if side == "dest" else (u @ (sigma * c), v @ c)
    x = run.layers[1].resid[0] / run.attention_run(1).norm_scale[0]  # where RoPE turns nothing
    torch.testing.assert_close(run.attention_run(1).q[head, 0] @ query, x @ s_u / s_u.norm(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.attention_run(1).k[1, 0] @ key, x @ s_v / s_v.norm(), rtol=1e-4, atol=1e-5)
    with pytest.raises(KeyholeError, match="has channels 0 to 7"):
        paired(model, (1, head), side, [8], coordinates=torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(KeyholeError, match="it has no direction"):
        paired(model, (1, head), side, [0], coordinates=torch.zeros(1))  # type: ignore[arg-type]


def test_channels_have_two_signs_and_sum_to_scores(organism: Model) -> None:
    run = organism.run(PROMPT)
    record, head = run.attention_run(3), (3, 1)
    both = channel_subjects(organism, head)
    assert [one.id for one in both[:4]] == ["3.1:0", "3.1:0-", "3.1:1", "3.1:1-"]
    scores = torch.zeros(len(run), len(run))
    for one in both[::2]:
        sigma = omega(organism, 3).sigma[1, one.about["channels"][0]]
        scores += sigma * torch.outer(record.q[1] @ one.query, record.k[1] @ one.key)
    torch.testing.assert_close(
        scores * record.rule.scaling, record.scores([1], range(len(run)))[0], rtol=1e-3, atol=1e-3
    )
    assert torch.equal(both[1].query, -both[0].query) and torch.equal(both[1].key, -both[0].key)
    with pytest.raises(KeyholeError, match=r"no head 9\.1"):
        channel_subjects(organism, (9, 1))


def test_signals_of_a_store_are_added_up_most_frequent_first(
    organism: Model, outcomes: list[object], tmp_path: Path
) -> None:
    used = [replace(one, index=i) for i, one in enumerate(outcomes[:3])]
    store = stored(tmp_path / "a.store", used)
    subjects = store_subjects(store, organism, most=None)
    counts = [int(one.about["prompts"]) for one in subjects]
    assert counts == sorted(counts, reverse=True) and len({one.id for one in subjects}) == len(subjects)
    assert [one.id for one in store_subjects(store, organism, most=5)] == [one.id for one in subjects[:5]]
    own = [signal_subjects(circuit, organism) for _, circuit in store.circuits()]
    texts = [{one.id.rpartition(" #")[0] for one in some} for some in own]
    for one in subjects:
        assert int(one.about["prompts"]) == sum(one.id in some for some in texts)
        alone = [s for some in own for s in some if s.id.rpartition(" #")[0] == one.id]
        if len(alone) == 1:
            torch.testing.assert_close(one.query, alone[0].query)
            torch.testing.assert_close(one.key, alone[0].key)
        else:  # a sum lies between its parts
            shares = [float(torch.cosine_similarity(one.key, s.key, dim=0)) for s in alone]
            assert max(shares) > 0.5 or min(shares) < 0
    assert max(counts) > 1
    with pytest.raises(KeyholeError, match="has other weights"):
        store_subjects(store, tiny_model("gpt2"))


def test_random_controls_are_of_the_same_heads_and_paired_by_omega(organism: Model, circuit: keyhole.Circuit) -> None:
    like = signal_subjects(circuit)
    controls = random_subjects(organism, like, seed=1)
    assert [one.head for one in controls] == [one.head for one in like]
    assert [one.about["side"] for one in controls] == [one.about["side"] for one in like]
    assert {one.kind for one in controls} == {"random"} and len({one.id for one in controls}) == len(like)
    again, other = random_subjects(organism, like, seed=1), random_subjects(organism, like, seed=2)
    assert torch.equal(again[0].query, controls[0].query) and not torch.equal(other[0].query, controls[0].query)
    for one in controls[:5]:
        om, head = omega(organism, one.head[0]), one.head[1]
        offered = om.v(head).T @ (om.v(head) @ (torch.linalg.solve(om.G_s[head].T, one.key)))
        asked = torch.linalg.solve(om.G_d[head], one.query) * om.sigma[head]  # coordinates of s_u in u_k
        assert float(asked.norm()) == pytest.approx(1, abs=1e-3) and float(offered.norm()) == pytest.approx(1, abs=1e-3)
        paired_with = om.sigma[head] * asked  # Omega^T s_u in v_k
        cosine = float(torch.cosine_similarity(paired_with, offered, dim=0))
        backwards = float(torch.cosine_similarity(asked, om.sigma[head] * offered, dim=0))
        assert max(cosine, backwards) == pytest.approx(1, abs=1e-4)


def test_features_are_named_in_the_frame_of_scores_alone(organism: Model) -> None:
    found = organism.contrast(
        keyhole.Contrast.from_roles("io", keyhole.tasks.ioi(40), query="END", positive="IO", negative="S1")
    )
    feature = next(one.feature for one in found.heads if one.rank)
    subjects = contrast_subjects(organism, [feature], "relative")  # it does not rotate
    assert len(subjects) == 2 * feature.rank and subjects[0].kind == "contrast"
    torch.testing.assert_close(subjects[0].query, feature.U[:, 0].float())
    llama, there = tiny_model("llama"), replace(feature, head=(1, 1))
    with pytest.raises(KeyholeError, match="depends on the position"):
        contrast_subjects(llama, [there], "relative")
    assert contrast_subjects(llama, [there], "post_rope")
    with pytest.raises(KeyholeError, match=r"no head 3\.9"):
        contrast_subjects(llama, [replace(feature, head=(3, 9))], "post_rope")
    features = head_features(organism, list(chunks(organism, limit=80)), (2, 1), view=View("post_rope"))
    discovered = discovered_subjects(organism, features)
    q, k = torch.randn(2, 5, organism.dims.d_head, generator=torch.Generator().manual_seed(0))
    for number, one in enumerate(discovered[::2]):
        matched = features.discovery.features[number]
        value = (q @ one.query + one.query_offset) * (k @ one.key + one.key_offset) * abs(matched.coupling)
        terms = features.discovery.split(q, k).terms[:, number].float()
        torch.testing.assert_close(value, terms, rtol=1e-3, atol=1e-4)


# -- where else ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["llama", "mistral"])
def test_a_head_fires_where_it_attends_most_above_uniform(variant: str) -> None:
    model = tiny_model(variant)
    texts, at_rest = texts_of(model, 30), 0
    for head in ((0, 1), (1, 2), (2, 0)):
        found = where(model, head, texts, top=15)
        pairs = every_pair(model, Subject("any", "random", head, *torch.zeros(2, model.dims.d_head)), texts)
        times = [replace(p, value=p.attention * p.visible) for p in pairs]
        ranked = best([replace(p, value=p.value * (p.src > 0)) for p in times], texts, 15)
        assert [place(one) for one in found.shown] == [place(one) for one in ranked]
        assert [one.value for one in found.shown] == pytest.approx([one.value for one in ranked], rel=1e-4)
        at_rest += sum(p.src == 0 for p in best(times, texts, 15))
    assert at_rest  # which were left out
    head = (1, 2)
    one = subjects_of(model, 2)[1]
    assert where(model, one, texts, top=6).shown == gather(model, [one], texts, amounts=FEW)[0].of("top")
    with pytest.raises(KeyholeError, match=r"no head 1\.7"):
        where(model, (1, 7), texts)
    with pytest.raises(KeyholeError, match="top is 0, but should be at least 1"):
        where(model, head, texts, top=0)


def test_operands_name_heads_channels_and_edges(organism: Model, circuit: keyhole.Circuit, tmp_path: Path) -> None:
    assert read_what(organism, "3.1") == (3, 1)
    for text in ("3.1:4", "3.1:4-"):
        found = read_what(organism, text)
        assert isinstance(found, Subject) and found.id == text
    circuit.save(tmp_path / "mary.json")
    subject = signal_subjects(circuit)[0]
    edge = subject.about["edge"]
    found = read_what(organism, f"{tmp_path}/mary.json#{edge}")
    assert isinstance(found, Subject) and found.id == subject.id
    torch.testing.assert_close(found.query, subject.query)
    target = next(i for i, one in enumerate(circuit.edges) if one.side == "target")
    for text, reason in [
        ("3", "a head such as 3.1"),
        ("3.1:x", "a head such as 3.1"),
        ("3.1:99", "has channels 0 to 15"),
        (f"{tmp_path}/mary.json#9999", "and not #9999"),
        (f"{tmp_path}/mary.json#{target}", "is not a signal into a head"),
        (f"{tmp_path}/none.json#1", "there is no file"),
    ]:
        with pytest.raises(KeyholeError, match=reason):
            read_what(organism, text)


def test_the_command_says_where(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("\n".join(documents(60, seed=4)))
    told = typed("where", "3.1:0", "--corpus", "some.txt", "--top", "3", folder=tmp_path)
    assert told.returncode == 0 and told.stdout.count("[[") == 4 and "((" in told.stdout, told.stderr
    circuit.save(tmp_path / "mary.json")
    edge = signal_subjects(circuit)[0].about["edge"]
    told = typed("where", f"mary.json#{edge}", "--tokens", "3000", "--top", "2", "--json", folder=tmp_path)
    record = json.loads(told.stdout)
    assert len(record["shown"]) == 2 and record["model"] == "organism" and record["shown"][0]["value"] > 0
    for args, reason in [
        (("nothing",), "'nothing' names nothing that can be looked for: give a head such as 3.1"),
        (("3.1", "--corpus", "none.txt"), "there is no file none.txt"),
        (("none.json#1",), "none.json"),
    ]:
        told = typed("where", *args, folder=tmp_path)
        assert told.returncode == 2 and reason in told.stderr and len(told.stderr.splitlines()) == 1
