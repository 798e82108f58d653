"""Edits: what they do to attention is what the dense formulas say, on every architecture, with a cache or without."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import keyhole
from commands import keyhole as typed
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError, Model, Run
from keyhole.circuits.records import Signal, Writer
from keyhole.edits import (
    At,
    BiasEdit,
    CauseEdit,
    ChannelEdit,
    Edit,
    FeatureEdit,
    SignalEdit,
    Source,
    WriteEdit,
    changes,
    edited,
    load_edits,
    random_channels,
    random_heads,
    save_edits,
    side_effects,
)
from keyhole.edits.changes import predicted
from keyhole.edits.files import read_edits
from keyhole.features.contrast import collect, find_features, order_contrast
from keyhole.generation import beside, sweep
from keyhole.intervene import Metric, answers_without, edge_cut, intervene
from keyhole.intervene.cuts import Claim, claim_of
from keyhole.intervene.removal import Cut, head_delta
from keyhole.intervene.rerun import rerun
from keyhole.models import attention
from keyhole.qk.omega import omega
from tiny import EARLY, VARIANTS

PROMPT = "When Mary and John went to the store, John gave a drink to"
REFUSED = ("olmo-clip", "mamba", "xglm", *EARLY)
SUPPORTED = [variant for variant in VARIANTS if variant not in REFUSED]
KS = (0, 2)
DEST, SRC = At((7, 9)), At((2, 4, 6))


def run_of(model: Model, n: int = 12) -> Run:
    return model.run(prompts_of(model, n)[0])


def head_of(model: Model) -> tuple[int, int]:
    """A head of the last attention layer, and not the first of its key."""
    return model.attention_layers[-1], 1


def basis_of(model: Model, rank: int = 2) -> tuple[tuple[float, ...], ...]:
    rows = torch.randn(model.dims.d_head, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return tuple(map(tuple, torch.linalg.qr(rows).Q.T.tolist()))


def masked(delta: Tensor, edit: Edit) -> Tensor:
    """What an edit changes, at the tokens that it names."""
    n = delta.shape[0]
    dest, src = (torch.tensor([at.overlaps(At((t,))) for t in range(n)]) for at in (edit.dest, edit.src))
    return delta * dest[:, None] * src[None, :]


def dense(run: Run, edit: Any) -> Tensor:
    """The change of all scores of the edited head, term by term."""
    layer, h = edit.head
    record, om = run.attention_run(layer), omega(run.model, layer)
    q, k = record.q[h].double(), record.k[record.kv(h)].double()
    if isinstance(edit, BiasEdit):
        return masked(torch.full((len(run), len(run)), edit.amount, dtype=torch.float64), edit)
    if isinstance(edit, ChannelEdit):
        ks = list(edit.channels)
        a, b = q @ om.G_d[h].double()[:, ks], k @ om.G_s[h].double()[ks].T
        a = (edit.factor - 1) * a if edit.value is None else edit.value - a
        return masked(record.rule.scaling * a @ b.T, edit)
    if isinstance(edit, FeatureEdit):
        P = torch.tensor(edit.basis, dtype=torch.float64)
        P = P.T @ P
        if edit.frame == "pre_rope" and record.rotary is not None:
            eye = torch.eye(len(P), dtype=torch.float64)[:, None].expand(-1, len(run), -1)
            R = record.rotary.rotate(eye).transpose(0, 1)  # rows of R_t are R_t e_i
            P = torch.linalg.inv(R) @ P @ R  # x R^-1 P R, for rows x
        else:
            P = P.expand(len(run), -1, -1)
        if edit.side == "dest":
            delta = torch.einsum("td,tde,se->ts", q, P, k)
        else:
            delta = torch.einsum("td,sed,se->ts", q, P, k)
        return masked((edit.factor - 1) * record.rule.scaling * delta, edit)
    return masked((edit.factor - 1) * signal_scores(run, edit), edit)


def signal_scores(run: Run, edit: SignalEdit) -> Tensor:
    """What a signal adds to every score: one (dest, src) at a time, by what a removal takes."""
    layer, h = edit.head
    record, scores = run.attention_run(layer), torch.zeros(len(run), len(run), dtype=torch.float64)
    sources = [t for t in range(len(run)) if edit.writer.src.overlaps(At((t,)))] if edit.writer.kind == "head" else [0]
    head = {"head": edit.writer.head, "offset": h}.get(edit.writer.kind)
    for at in range(len(run)):
        for source in sources if edit.writer.kind == "head" else [at]:
            writer = Writer(edit.writer.kind, edit.writer.layer, head, at, source)
            # a firing at which the token is dest, and one in which it is the only source
            cut = Cut(layer, h, at, at, (Signal(writer, edit.side, edit.channels),), keys="source")
            lost = record.rule.scaling * head_delta(run, cut)[0].double()
            if edit.side == "dest":
                scores[at] += record.k[record.kv(h)].double() @ lost
            else:
                scores[:, at] += record.q[h].double() @ lost
    return scores


def expected(run: Run, edits: Sequence[Edit]) -> Tensor:
    layer, h = edits[0].head  # type: ignore[attr-defined]
    record = run.attention_run(layer)
    scores = record.scores([h], range(len(run)))[0].double() + sum(dense(run, edit) for edit in edits)
    return record.rule.of_head(scores, record.visible(), h)


def kinds(model: Model) -> dict[str, Edit]:
    """Edits of every kind that changes scores."""
    head = head_of(model)
    layer = head[0]
    lower = [i for i in model.attention_layers if i < layer]
    edits: dict[str, Edit] = {
        "channels": ChannelEdit(head=head, channels=KS, factor=-0.5),
        "channels at": ChannelEdit(head=head, channels=KS, factor=3, dest=DEST, src=SRC),
        "channels on": ChannelEdit(head=head, channels=KS, dest=At(start=5)),
        "channels set": ChannelEdit(head=head, channels=KS, value=0.7, src=At(start=3)),
        "bias": BiasEdit(head=head, amount=1.5, src=SRC),
        "mlp": SignalEdit(head=head, side="dest", channels=KS, writer=Source("mlp", 0)),
        "mlp at": SignalEdit(head=head, side="dest", channels=KS, writer=Source("mlp", 0), dest=DEST, src=SRC),
        "mlp src": SignalEdit(head=head, side="src", channels=KS, writer=Source("mlp", 0), src=SRC, factor=2),
        "embedding": SignalEdit(head=head, side="src", channels=KS, writer=Source("embedding", 0)),
        "offset": SignalEdit(head=head, side="dest", channels=KS, writer=Source("offset", layer)),
        "queries": FeatureEdit(head=head, side="dest", basis=basis_of(model), dest=DEST),
        "keys": FeatureEdit(head=head, side="src", basis=basis_of(model), src=SRC),
        "queries before": FeatureEdit(head=head, side="dest", basis=basis_of(model), frame="pre_rope", src=SRC),
        "keys before": FeatureEdit(head=head, side="src", basis=basis_of(model), frame="pre_rope", factor=2),
    }
    if lower:
        head_below, some = Source("head", lower[-1], 2), Source("head", lower[-1], 2, SRC)
        edits |= {
            "bias below": SignalEdit(head=head, side="src", channels=KS, writer=Source("bias", lower[-1]), dest=DEST),
            "head": SignalEdit(head=head, side="dest", channels=KS, writer=head_below),
            "head from": SignalEdit(head=head, side="src", channels=KS, writer=some, factor=-1),
        }
    return edits


@pytest.mark.parametrize("variant", SUPPORTED)
def test_attention_is_as_the_formulas_say(variant: str) -> None:
    model = tiny_model(variant)
    run, (layer, h) = run_of(model), head_of(model)
    before = run.pattern(layer)
    for name, edit in kinds(model).items():
        other = run.with_edits([edit])
        after, foreseen, want = other.pattern(layer), predicted(run, [edit], (layer, h)), expected(run, [edit])
        assert foreseen is not None
        assert float((after[h] - want).abs().max()) < 1e-4, name
        assert float((foreseen - want).abs().max()) < 1e-4, name
        siblings = [i for i in range(model.dims.heads) if i != h]
        assert float((after[siblings] - before[siblings]).abs().max()) < 1e-6, name
        assert float((after[h] - before[h]).abs().max()) > 1e-6 or name in ("offset", "bias below", "embedding"), name


# -- what is written -----------------------------------------------------------------------------------------------


def answer_of(run: Run) -> Metric:
    return Metric(len(run) - 1, (int(run.logits[-1].argmax()),), (int(run.logits[-1].argmin()),))


@pytest.mark.parametrize("variant", SUPPORTED)
def test_what_is_not_written_is_missing_downstream(variant: str) -> None:
    """Heads, MLPs, mixers and embeddings taken away: as a silenced writer, which is measured by other hooks."""
    model = tiny_model(variant)
    run, layer = run_of(model), model.attention_layers[0]
    metric, n = answer_of(run), range(12)
    head = [Writer("head", layer, 1, dest, src) for dest in n for src in range(dest + 1)]
    some = [writer for writer in head if writer.src in (2, 4, 6) and writer.dest in (7, 9)]
    cases: list[tuple[list[Writer], Edit]] = [
        (head, WriteEdit(writer=Source("head", layer, 1))),
        (some, WriteEdit(writer=Source("head", layer, 1, SRC), dest=DEST)),
        ([Writer("mlp", 0, None, t, t) for t in n if t >= 5], WriteEdit(writer=Source("mlp", 0), dest=At(start=5))),
    ]
    mixers = [i for i in range(model.dims.layers) if i not in model.attention_layers]
    if mixers:
        cases.append(
            ([Writer("mixer", mixers[0], None, 3, 3)], WriteEdit(writer=Source("mixer", mixers[0]), dest=At((3,))))
        )
    wanted = answers_without(run, [members for members, _ in cases], metric)
    for (_, edit), want in zip(cases, wanted, strict=True):
        assert metric.of(run.with_edits([edit]).logits[-1]) == pytest.approx(want, rel=1e-4, abs=1e-4), edit


@pytest.mark.parametrize(
    "variant", ["gpt2", "llama", "gemma2", "olmo2", "granite", "gptj", "mixtral", "gpt_oss", "bloom"]
)
def test_causes_of_an_mlp_are_those_that_verification_removes(variant: str) -> None:
    model = tiny_model(variant)
    run, layer = run_of(model), 2
    direction = run.layers[layer].mlp[9].float()  # along what it writes: some causes push there
    write = run.explain_mlp(layer, 9, direction, cover=0.95)
    claim = claim_of(write)
    claim = Claim(claim.place, claim.direction, claim.causes, offset=False)
    metric = answer_of(run)
    want = metric.of(rerun(run, claim.removals(0)[:1]).captured.logits[0, 9])
    writers = tuple(Source.of(writer) for writer in claim.causes)
    other = run.with_edits([CauseEdit(layer=layer, writers=writers, dest=At((9,)))])
    assert abs(want - metric.of(run.logits[9])) > 1e-4
    assert metric.of(other.logits[9]) == pytest.approx(want, rel=1e-4, abs=1e-4)


# -- with a cache --------------------------------------------------------------------------------------------------


def many(model: Model) -> list[Edit]:
    """Edits of every kind at once, whose tokens lie in the prompt and in the answer."""
    chosen = kinds(model)
    names = ("channels on", "mlp src", "head from", "queries", "keys before", "bias")
    edits = [chosen[name] for name in names if name in chosen]
    first = model.attention_layers[0]
    edits += [
        WriteEdit(writer=Source("head", first, 0, At(start=3)), factor=-1),
        WriteEdit(writer=Source("mlp", 1), factor=2),
    ]
    return edits


@pytest.mark.parametrize("variant", SUPPORTED)
def test_with_a_cache_the_answer_is_that_of_whole_passes(variant: str) -> None:
    """Each token is the likeliest one of an edited pass without a cache, near ties aside."""
    model = tiny_model(variant)
    (ids,) = prompts_of(model, 9)
    edits = many(model)
    answer, plain = model.generate(ids, edits=edits, max_new_tokens=10), model.generate(ids, max_new_tokens=10)
    assert answer.run.edits == tuple(edits) and not plain.run.edits
    logits = answer.run.logits[answer.start - 1 : -1].double()
    if model.rope_sees_length:
        logits = torch.stack([answer.before(at).logits[-1] for at in range(len(answer))]).double()
    for row, token in zip(logits, answer.tokens, strict=True):
        assert float(row.max() - row[token.id]) <= 1e-4 * float(row.abs().max())
    whole = plain.run.with_edits(edits)
    assert float((whole.logits - plain.run.logits).abs().max()) > 1e-2


@pytest.mark.parametrize("variant", ["llama", "gemma3_text", "gpt_oss", "qwen3"])
def test_logits_of_every_step_are_those_of_a_whole_pass(variant: str) -> None:
    model = tiny_model(variant)
    (ids,) = prompts_of(model, 14)
    edits = many(model)
    want = model.run(ids).with_edits(edits).logits
    with edited(model, edits), torch.no_grad():
        first = model.hf(input_ids=torch.tensor([ids[:8]]), use_cache=True)
        rows, cache = [first.logits[0]], first.past_key_values
        for token in ids[8:]:
            step = model.hf(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            rows.append(step.logits[0])
    torch.testing.assert_close(torch.cat(rows), want, rtol=1e-4, atol=1e-4)


# -- what users rely on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["gpt2", "llama", "bloom"])
def test_a_factor_of_one_changes_no_bit(variant: str) -> None:
    model = tiny_model(variant)
    run, head = run_of(model), head_of(model)
    edits = [
        ChannelEdit(head=head, channels=KS, factor=1, src=SRC),
        WriteEdit(writer=Source("mlp", 0), factor=1),
        BiasEdit(head=head, amount=0),
    ]
    other = run.with_edits(edits)
    assert torch.equal(other.logits, run.logits) and not other.edits
    plain, same = (model.generate(list(run.token_ids), max_new_tokens=6, edits=e) for e in ((), edits))
    assert torch.equal(plain.run.logits, same.run.logits)


@pytest.mark.parametrize("variant", ["gpt2", "llama", "bloom"])
def test_afterwards_the_model_is_as_it_was(variant: str) -> None:
    model = tiny_model(variant)
    run, weights, chosen = run_of(model), model.fingerprint(), model.hf.config._attn_implementation

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.hf.modules())

    before = hooks()
    with pytest.raises(RuntimeError, match="in the middle"), model.edited(many(model)):
        assert hooks() > before
        raise RuntimeError("in the middle")
    assert hooks() == before and not attention.editors and not attention.edits_of
    assert model.hf.config._attn_implementation == chosen and model.fingerprint() == weights
    assert torch.equal(run_of(model).logits, run.logits)


@pytest.mark.parametrize("variant", ["gpt2", "llama", "qwen3"])
def test_edits_compose(variant: str) -> None:
    """Two halves of a head's channels are the whole; half of a half is a quarter; what is gone stays gone."""
    model = tiny_model(variant)
    run, head = run_of(model), head_of(model)
    low, high, both = ((0, 1), (2, 3), (0, 1, 2, 3))

    def logits(*edits: Edit) -> Tensor:
        return run.with_edits(edits).logits

    def channels(ks: tuple[int, ...], factor: float = 0.0) -> Edit:
        return ChannelEdit(head=head, channels=ks, factor=factor)

    close: Callable[..., None] = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    close(logits(channels(low), channels(high)), logits(channels(both)))
    close(logits(channels(low, 0.5), channels(low, 0.5)), logits(channels(low, 0.25)))
    signal = SignalEdit(head=head, side="dest", channels=low, writer=Source("mlp", 0))
    close(logits(signal, channels(low)), logits(channels(low)))
    close(logits(channels(low), signal), logits(channels(low)))


def test_a_run_inside_the_context_is_edited_and_cannot_be_traced(organism: Model) -> None:
    edit = WriteEdit(writer=Source("head", 3, 6))
    with organism.edited([edit]):
        run = organism.run(PROMPT)
        with pytest.raises(KeyholeError, match="being edited already"), organism.edited([edit]):
            pass
    assert torch.equal(run.logits, organism.run(PROMPT).with_edits([edit]).logits)
    with pytest.raises(KeyholeError, match="made with edits"):
        run.trace("Mary")
    with pytest.raises(KeyholeError, match="what its `with_edits` returned"):
        changes(run, run)


def test_changes_say_what_was_predicted_and_measured(organism: Model) -> None:
    run = organism.run(PROMPT)
    edit = ChannelEdit(head=(1, 6), channels=(5,), dest=At((14,)))
    found = changes(run, run.with_edits([edit]))
    (row,) = found.attention
    assert row.predicted == pytest.approx(row.after, abs=1e-4) and row.before - row.after > 0.1 and found.kl > 0
    assert "predicted" in str(found) and str(edit) in str(found)
    upper = ChannelEdit(head=(3, 6), channels=(0,))
    rows = changes(run, run.with_edits([upper, edit])).attention
    assert [row.predicted is None for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (ChannelEdit(head=(9, 0), channels=(0,)), "no head 9.0"),
        (ChannelEdit(head=(0, 8), channels=(0,)), "no head 0.8"),
        (ChannelEdit(head=(0, 0), channels=(16,)), "no channel 16: head 0.0 has channels 0 to 15"),
        (ChannelEdit(head=(0, 0), channels=(0,), dest=At((15,))), "names token 15, but there are 15 tokens"),
        (ChannelEdit(head=(0, 0), channels=(0,), model="0" * 64), "made for other weights"),
        (SignalEdit(head=(1, 0), side="dest", channels=(0,), writer=Source("mlp", 1)), "stands no lower"),
        (SignalEdit(head=(1, 0), side="dest", channels=(0,), writer=Source("mixer", 0)), "no other mixer"),
        (FeatureEdit(head=(1, 0), side="dest", basis=((1.0, 0.0),)), "2 coordinates"),
        (WriteEdit(writer=Source("mlp", 4)), "no layer 4"),
        (CauseEdit(layer=1, writers=(Source("mlp", 2),)), "stands no lower"),
    ],
)
def test_what_does_not_fit_is_one_sentence(organism: Model, edit: Any, reason: str) -> None:
    with pytest.raises(KeyholeError, match=reason):
        organism.run(PROMPT).with_edits([edit])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: At((-1,)), "positions from 0"),
        (lambda: At((1,), start=2), "not both"),
        (lambda: ChannelEdit(head=(0, 0), channels=()), "one or more different numbers"),
        (lambda: ChannelEdit(head=(0, 0), channels=(0,), factor=float("nan")), "should be a number"),
        (lambda: FeatureEdit(head=(0, 0), side="dest", basis=((2.0, 0.0),)), "orthonormal"),
        (lambda: Source("mlp", 0, 3), "others? writers? have none|other writers have none"),
        (lambda: WriteEdit(writer=Source("bias", 0)), "no block"),
        (lambda: CauseEdit(layer=1, writers=()), "one or more writers"),
    ],
)
def test_records_refuse_what_is_no_edit(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(KeyholeError, match=reason):
        make()


def test_two_edits_of_one_term_are_refused(organism: Model) -> None:
    run = organism.run(PROMPT)
    one = ChannelEdit(head=(3, 6), channels=(0, 1), src=At((2,)))
    with pytest.raises(KeyholeError, match="the same term"):
        run.with_edits([one, ChannelEdit(head=(3, 6), channels=(1,), src=At((2, 3)))])
    run.with_edits([one, ChannelEdit(head=(3, 6), channels=(1,), src=At((3,)))])


def test_caches_that_edits_have_not_seen_are_refused(organism: Model) -> None:
    ids = torch.tensor([organism.run(PROMPT).token_ids])
    signal = SignalEdit(head=(3, 6), side="src", channels=(0,), writer=Source("mlp", 0))
    with torch.no_grad():
        cache = organism.hf(input_ids=ids[:, :8], use_cache=True).past_key_values
    with pytest.raises(KeyholeError, match="empty cache"), organism.edited([signal]), torch.no_grad():
        organism.hf(input_ids=ids[:, 8:], past_key_values=cache)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    with pytest.raises(KeyholeError, match="padding moves"), organism.edited([one_token(signal)]), torch.no_grad():
        organism.hf(input_ids=ids, attention_mask=mask)
    from_some = WriteEdit(writer=Source("head", 3, 6, At((1, 2))))
    with pytest.raises(KeyholeError, match="padding moves"), organism.edited([from_some]), torch.no_grad():
        organism.hf(input_ids=ids, attention_mask=mask)


def one_token(edit: Edit) -> Edit:
    return edit.at(dest=3)


# -- from what was traced ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(organism: Model) -> Run:
    return organism.run(PROMPT)


@pytest.fixture(scope="module")
def circuit(run: Run) -> keyhole.Circuit:
    return run.trace("Mary", against="John")


def test_an_edge_makes_the_edit_that_verification_measures(circuit: keyhole.Circuit, run: Run) -> None:
    signals = [edge for side in ("dest", "src") for edge in [e for e in circuit.edges if e.side == side][:4]]
    metric = Metric(len(run) - 1, circuit.parameters.target_ids, circuit.parameters.against_ids)
    outcomes = intervene(run, [edge_cut(circuit, edge) for edge in signals], metric)
    for edge, outcome in zip(signals, outcomes, strict=True):
        node, other = circuit.nodes[edge.receiver], run.with_edits([edge.edit()])
        after = float(other.pattern(node.layer)[node.head, node.dest, node.src])
        assert after == pytest.approx(outcome.after, abs=1e-4)
        assert metric.of(other.logits[-1]) == pytest.approx(outcome.metric_after, abs=1e-3)
        assert circuit.edit(edge) == edge.edit() and edge.edit(scope="everywhere").dest.everywhere
    assert {edge.side for edge in signals} == {"dest", "src"}


def test_causes_nodes_and_firings_make_edits(circuit: keyhole.Circuit, run: Run) -> None:
    cause = next(edge for edge in circuit.edges if edge.side == "mlp")
    assert isinstance(cause.edit(), CauseEdit)
    head = next(node for node in circuit.nodes if node.kind == "head")
    write = circuit.edit(head, factor=2, scope="on")
    assert isinstance(write, WriteEdit) and write.writer.src.everywhere and write.dest == At(start=head.dest)
    firing = run.explain((1, 6), -1, "Mary")
    edits = firing.edits(factor=0.5)
    assert len(edits) == sum(len(side.signals) for side in firing.sides)
    run.with_edits([cause.edit(), write, *edits])
    seed = next(edge for edge in circuit.edges if edge.side == "target")
    with pytest.raises(KeyholeError, match="edit its sender"):
        seed.edit()
    with pytest.raises(KeyholeError, match="writes nothing"):
        circuit.edit(circuit.nodes[len(circuit.nodes) - 1])


def test_an_edge_knows_its_circuit_and_equal_edges_are_equal(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    circuit.save(tmp_path / "mary.json")
    read = keyhole.Circuit.load(tmp_path / "mary.json")
    edge = next(i for i, edge in enumerate(circuit.edges) if edge.side == "dest")
    assert read.edges[edge] == circuit.edges[edge] and read.edges[edge].edit() == circuit.edges[edge].edit()
    with pytest.raises(KeyholeError, match="outside of its circuit"):
        replace(circuit.edges[edge]).edit()


def test_a_feature_of_a_contrast_makes_an_edit(organism: Model) -> None:
    contrast = order_contrast(organism, 40, n_boxes=4)
    feature = find_features(collect(organism, contrast), permutations=40).of((1, 6), 2)
    edit = feature.edit(side="dest", factor=0.5)
    assert len(edit.basis) == 2 and edit.head == (1, 6)
    organism.run(PROMPT).with_edits([edit, feature.edit(side="src").at(src=[2])])
    with pytest.raises(KeyholeError, match="relative"):
        feature.edit(frame="relative")


# -- files, and what is typed --------------------------------------------------------------------------------------


def test_files_give_back_what_was_written(organism: Model, circuit: keyhole.Circuit, tmp_path: Path) -> None:
    edits = [*kinds(organism).values(), next(e for e in circuit.edges if e.side == "mlp").edit()]
    edits += [WriteEdit(writer=Source("head", 1, 2, At((3, 4))), factor=-1.5, dest=At(start=3))]
    save_edits(tmp_path / "edits.json", edits)
    assert load_edits(tmp_path / "edits.json") == tuple(edits)
    save_edits(tmp_path / "of.json", edits[:2], organism)
    (first, _) = load_edits(tmp_path / "of.json")
    assert first.model == organism.fingerprint()
    with pytest.raises(KeyholeError, match="other weights"):
        run_of(tiny_model("gpt2")).with_edits([first])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "should have exactly"),
        ('{"schema": 2, "model": {}, "edits": []}', "its schema is 2, and this version reads 1"),
        ('{"schema": 1, "model": {}, "edits": [{"kind": "weights"}]}', "choose one of channels, signal"),
        ('{"schema": 1, "model": {}, "edits": [{"kind": "channels", "head": [3, 6]}]}', "exactly the keys"),
        ('{"schema": 1, "model": {}, "edits": [{"kind": "channels", "head": 3, "channels": [0]}]}', "head is 3"),
        ('{"schema": 1, "model": {}, "edits": [{"kind": "bias", "head": [3, 6], "amount": "x"}]}', "is no number"),
        ('{"schema": 1, "model": {}, "edits": [{"kind": "write", "writer": {"kind": "cat"}}]}', "kind"),
    ],
)
def test_files_that_are_wrong_are_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "edits.json"
    path.write_text(text)
    with pytest.raises(KeyholeError, match=reason):
        load_edits(path)


@pytest.mark.parametrize("text", ["3.6", "3*0", "3.6:*0", "mlp*0", "3.6:0,0*1", "3.6*x", "nothing.json"])
def test_what_is_typed_wrong_is_one_sentence(text: str) -> None:
    with pytest.raises(KeyholeError):
        read_edits([text])


# -- side by side --------------------------------------------------------------------------------------------------


def test_answers_stand_side_by_side(organism: Model, tmp_path: Path) -> None:
    edits = read_edits(["1.6:5,12*-1", "3.6*0"])
    answers = beside(organism, PROMPT, edits, controls=2, max_new_tokens=3)
    assert answers.changed and answers.original.text == " Mary." and answers.edited.text != " Mary."
    first = answers.tokens[0]
    direct = organism.run(PROMPT).with_edits(edits).logits[-1].double().softmax(-1)
    assert first.after == pytest.approx(float(direct[answers.original.tokens[0].id]), rel=1e-3)
    assert first.before > 0.9 and first.kl > 1 and {head.edited for head in answers.heads} == {True, False}
    assert [c.name for c in answers.controls] == ["random channels"] * 2 and answers.controls[0].after > 0.9
    assert "The edits change the answer." in str(answers)
    saved = answers.save(tmp_path / "beside.html")
    assert "What would it have said?" in saved.read_text()
    assert not beside(organism, PROMPT, [WriteEdit(writer=Source("mlp", 3))], controls=2, max_new_tokens=1).controls


def test_strengths_are_swept(organism: Model) -> None:
    rows = sweep(organism, PROMPT, read_edits(["1.6:5,12*0"]), (1.0, 0.0, -1.0), max_new_tokens=1)
    assert rows[0].kl == 0 and rows[0].kl < rows[1].kl < rows[2].kl and rows[0].first > rows[2].first


def test_controls_have_the_size_of_the_edit(organism: Model) -> None:
    edits = read_edits(["1.6:5,12*-1", "3.6*0"])
    channels, write = random_channels(organism, edits, seed=1)
    assert isinstance(channels, ChannelEdit) and not set(channels.channels) & {5, 12} and len(channels.channels) == 2
    assert write == edits[1]
    moved = random_heads(organism, edits, seed=1)
    assert moved[0].head_edited != (1, 6) and moved[0].first_layer == 1
    with pytest.raises(KeyholeError, match="no control"):
        random_heads(organism, read_edits(["mlp1*0"]))
    effects = side_effects(organism, edits, ["When Mary and John went to the", "When Mary and John"])
    assert effects.tokens == 11 and effects.kl > 0 and effects.perplexity_before > 1


def test_the_command_compares_two_answers(tmp_path: Path) -> None:
    ran = typed("generate", PROMPT, "--edit", "1.6:5,12*-1", "--edit", "3.6*0", "--max-new-tokens", "3", "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    assert record["original"]["text"] == " Mary." != record["edited"]["text"] and len(record["controls"]) == 2
    for options, reason in [
        (["--edit", "9.9*0"], "no layer 9"),
        (["--out", "x.html"], "give an --edit"),
        (["--edit", "3.6*0", "--stream"], "leave --stream out"),
        (["--edit", "3.6*0", "--out", str(tmp_path / "x.txt")], ".html"),
    ]:
        ran = typed("generate", PROMPT, *options)
        assert ran.returncode == 2 and reason in ran.stderr, ran.stderr


def test_wider_queries_are_scaled_as_the_model_scales(organism: Model, run: Run) -> None:
    """Kernels that are told no scale read it off the width of q, which further terms make larger."""
    edit = ChannelEdit(head=(3, 6), channels=(0, 1), src=At((2,)))
    record = run.attention_run(3)
    q, k, v = (x[None] for x in (record.q, record.k, record.v))
    with organism.edited([edit]), torch.no_grad():
        organism.hf(input_ids=torch.tensor([run.token_ids]))
        attend = ALL_ATTENTION_FUNCTIONS[organism.hf.config._attn_implementation]
        module = organism.blocks[3].get_submodule(organism.family.attn)
        said, unsaid = (attend(module, q, k, v, None, scaling=scale)[0] for scale in (record.rule.scaling, None))
    torch.testing.assert_close(said, unsaid)
