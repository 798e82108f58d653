"""Stories: routes are what walking every path says, effects what a removal by hand says, words what roles allow."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from statistics import mean, stdev

import numpy as np
import pytest
import torch

from conftest import prompts_of, rich_circuit, tiny_model
from keyhole import Circuit, KeyholeError, Model
from keyhole.circuits import Edge, Node
from keyhole.circuits.files import from_json, to_json
from keyhole.circuits.records import Accpp, Writer
from keyhole.faithfulness import other_words
from keyhole.faithfulness.baseline import baseline
from keyhole.faithfulness.effects import edge_of
from keyhole.faithfulness.other_words import COPIES, MORE, words_of
from keyhole.faithfulness.routes import Route, Story, Ways, groups_on
from keyhole.faithfulness.shares import MaskedQuestion, question
from keyhole.faithfulness.story import story_text, word_text
from keyhole.faithfulness.template import template_tokens
from keyhole.faithfulness.token_masks import all_but, only
from keyhole.faithfulness.words import _ordered, _ranked, _test, deciding_words, role_of
from keyhole.intervene import answers_without, estimate
from keyhole.intervene.cuts import metric_of
from keyhole.intervene.removal import Metric
from keyhole.tasks import Example, greater_than, induction, ioi
from keyhole.tracing.mlp_directions import Through
from tiny import DEFAULT, Sizes

IOI = "When Mary and John went to the store, John gave a drink to"
OWN = "Anna and Paul were friends. Anna gave a cup to"
VARIANTS = [("gpt2", Sizes(layers=6)), ("gptj", DEFAULT), ("lfm2", DEFAULT)]  # deep; parallel blocks; mixers
TASK_WORDS = ("name mover", "S-inhibition")


@pytest.fixture(scope="module", params=VARIANTS, ids=["gpt2", "gptj", "lfm2"])
def tiny_circuit(request: pytest.FixtureRequest) -> Circuit:
    model = tiny_model(*request.param)
    return rich_circuit(model.run(prompts_of(model, 8)[0]), through=Through(eps=0.01))


@pytest.fixture(scope="module")
def circuit(organism: Model) -> Circuit:
    return organism.run(IOI).trace("Mary", against="John", through="mlps")


@pytest.fixture(scope="module")
def story(circuit: Circuit) -> Story:
    return circuit.story()


def walks(circuit: Circuit) -> Iterator[tuple[list[int], float]]:
    """Every path of nodes from the answer down to a leaf, an edge at a time, with the product of its shares."""
    into = defaultdict(list)
    for edge in circuit.edges:
        into[edge.receiver].append(edge)

    def walk(nodes: list[int], share: float) -> Iterator[tuple[list[int], float]]:
        if not into[nodes[-1]]:
            yield nodes, share
        for edge in into[nodes[-1]]:
            if edge.influence:
                yield from walk([*nodes, edge.sender], share * edge.influence / circuit.influence[nodes[-1]])

    return walk([next(i for i, node in enumerate(circuit.nodes) if node.kind == "target")], 1.0)


def over_tokens(circuit: Circuit, nodes: list[int]) -> tuple[tuple[tuple[int, int], ...], int | None] | None:
    """The route that a path of nodes takes; None, if it does not come from a word."""
    on = [circuit.nodes[i] for i in nodes]
    moves = tuple((node.dest, node.src) for node in on if node.kind == "head" and node.dest != node.src)
    end = on[-1]
    if end.kind == "embedding" or (end.kind == "head" and end.layer == 0 and end.dest == end.src):
        return moves, end.dest
    return (moves, None) if end.kind == "head" and end.layer == 0 else None


def test_routes_are_all_paths_of_nodes_gathered(tiny_circuit: Circuit) -> None:
    """Best-first, with nothing lost: the shares of routes, and who carries each, by walking every path."""
    gathered, carried = defaultdict(float), defaultdict(lambda: defaultdict(float))
    lost = 0.0
    for nodes, share in walks(tiny_circuit):
        taken = over_tokens(tiny_circuit, nodes)
        if taken is None:
            lost += share
            continue
        gathered[taken] += share
        for node in nodes:
            carried[taken][node] += share
    ways = Ways(tiny_circuit)
    routes = list(ways.routes())
    assert len(routes) >= 3 and any(route.moves for route in routes)
    assert {(route.moves, route.word): route.share for route in routes} == pytest.approx(dict(gathered), abs=1e-9)
    assert all(one.share >= other.share for one, other in pairwise(routes))
    assert sum(route.share for route in routes) + lost == pytest.approx(1, abs=1e-6)
    for route in routes[:20]:
        found = defaultdict(float)
        for group in groups_on(ways, route)[0].values():
            for node, mass in group.carried.items():
                found[node] += mass
        assert dict(found) == pytest.approx(dict(carried[route.moves, route.word]), abs=1e-9)


def test_groups_are_entered_by_what_takes_them(tiny_circuit: Circuit) -> None:
    """All of a route makes each of its moves; a stay is made by what touches it, as walking every path says."""
    ways = Ways(tiny_circuit)
    checked = 0
    for route in islice(ways.routes(), 5):
        stays = defaultdict(float)
        for nodes, share in walks(tiny_circuit):
            if over_tokens(tiny_circuit, nodes) == (route.moves, route.word):
                kinds = [ways.kinds[node] for node in nodes]
                for stage in {kinds[:at].count("move") for at, kind in enumerate(kinds) if kind == "stay"}:
                    stays[stage] += share
        for (kind, stage), group in groups_on(ways, route)[0].items():
            want = {"stay": stays[stage], "answer": 0.0}.get(kind, route.share)
            assert group.influence == pytest.approx(want, abs=1e-9)
            checked += kind == "stay"
    assert checked


def test_what_passes_some_nodes(tiny_circuit: Circuit) -> None:
    """Of one node it is its influence; of several, every path that meets any of them, once."""
    ways = Ways(tiny_circuit)
    for node, influence in enumerate(tiny_circuit.influence):
        assert ways.through([node]) == pytest.approx(influence, abs=1e-6)
    some = sorted(range(len(ways.kinds)), key=lambda i: -tiny_circuit.influence[i])[1:6]
    met = sum(share for nodes, share in walks(tiny_circuit) if set(nodes) & set(some))
    assert ways.through(some) == pytest.approx(met, abs=1e-9) and met < sum(tiny_circuit.influence[i] for i in some)


def test_a_story_leaves_nothing_out_of_account(tiny_circuit: Circuit) -> None:
    told = tiny_circuit.story(top=10**6, least=0.0)
    assert told.weaker == pytest.approx(0, abs=1e-6) and told.metric is None
    for some in (told, tiny_circuit.story(top=1)):
        total = some.held + some.weaker + some.constants + sum(some.unfollowed.values())
        assert total == pytest.approx(1, abs=1e-5)
    assert "a direction has no answer to lose" in " ".join(str(told).split())


# -- effects -------------------------------------------------------------------------------------------------------


def question_of(circuit: Circuit) -> MaskedQuestion:
    run = circuit.run
    assert run is not None
    return question(run, metric_of(circuit), baseline(run))


def at_baseline(asked: MaskedQuestion, writers: tuple[Writer, ...]) -> float:
    """The answer in the model's own pass with these writers, heads with all their sources, at the baseline."""
    numbers = {(w.kind, w.layer, w.head): i for i, w in enumerate(asked.masked.wiring.writers)}
    instead: dict[Writer, torch.Tensor] = {}
    for writer in writers:
        sources = range(writer.dest + 1) if writer.kind == "head" else [writer.dest]
        number = numbers[writer.kind, writer.layer, writer.head]
        for src in sources:
            first = (
                asked.baseline.writes[number, writer.dest]
                if src == sources[0]
                else torch.zeros(asked.run.model.dims.d_model)
            )
            instead[replace(writer, src=src)] = first
    return answers_without(asked.run, [list(instead)], asked.metric, instead=instead)[0]


def test_effects_of_steps_are_measured_at_the_baseline(circuit: Circuit, story: Story) -> None:
    """Against edits of the model's own forward pass, which know nothing of masks."""
    asked = question_of(circuit)
    assert story.metric == "logit difference" and story.answer == pytest.approx(asked.metric.of(asked.run.logits[-1]))
    kinds = set()
    for step in (step for path in story.paths for step in path.steps):
        assert step.effect == pytest.approx(story.answer - at_baseline(asked, step.writers), abs=1e-3)
        kinds |= {writer.kind for writer in step.writers}
    assert kinds == {"embedding", "mlp", "head"} and max(path.steps[0].effect or 0 for path in story.paths) > 1


def test_paths_are_cut_with_their_edges(circuit: Circuit, story: Story) -> None:
    asked = question_of(circuit)
    everything, nothing = asked.ends
    joined = set()
    for path in story.paths:
        joints = {edge_of(circuit, edge, asked.masked.wiring) for edge in path.edges} - {None}
        joined |= joints
        without = asked.answers([all_but(np.array(sorted(joints)))])[0]
        assert path.effect == pytest.approx(everything - without, abs=1e-3) and path.effect > story.least
        on = {circuit.nodes[i] for edge in path.edges for i in (edge.sender, edge.receiver)}
        assert {Node.of(writer) for step in path.steps for writer in step.writers} <= on
    edges = np.array(sorted(joined))
    kept, cut = (asked.answers([only(edges), all_but(edges)]) - nothing) / (everything - nothing)
    assert (story.kept, story.cut) == pytest.approx((kept, cut), abs=1e-4)
    assert story.kept > 0.8 and story.cut < 0.2 and story.nothing == pytest.approx(nothing)
    assert f"With these 5 paths alone {kept:.0%} of the answer's gap to the baseline remains" in " ".join(
        str(story).split()
    )


def test_words_are_measured_by_other_words(circuit: Circuit, story: Story) -> None:
    """The answer less its mean over prompts in which one word is another, run one by one."""
    run = circuit.run
    assert run is not None and story.answer is not None
    metric, words = metric_of(circuit), words_of(run)
    effects = {word.tokens: word for word in story.words}
    assert set(effects) == {(token,) for token in range(1, len(run))} == set(words.words)
    numbers = set()
    for tokens in words.words[:6]:
        copies = words.copies([tokens], MORE)
        assert all([a == b for a, b in zip(ids, run.token_ids, strict=True)].count(False) == 1 for ids in copies)
        answers = [metric.of(run.model.run(list(ids), bos=False).logits[-1]) for ids in copies]
        few = [story.answer - answer for answer in answers[:COPIES]]  # do they say whether the word matters?
        left_open = abs(abs(mean(few)) - story.least) < 2 * stdev(few) / len(few) ** 0.5
        answers = answers[: MORE if left_open else COPIES]
        numbers.add(len(answers))
        assert effects[tokens].effect == pytest.approx(story.answer - mean(answers), abs=1e-3)
        assert effects[tokens].flips == sum(answer < 0 for answer in answers) / len(answers)
    assert numbers == {COPIES, MORE}


def test_other_words_are_likely_ones(circuit: Circuit) -> None:
    """Of the same form, the likeliest at their place, and equal ones where the prompt has equal ones."""
    run = circuit.run
    assert run is not None
    words = words_of(run)
    assert words.words[0] == (1,)  # what the tokenizer puts first stays
    likely = run.logits[1].argsort(descending=True).tolist()
    others = [ids[2] for ids in words.copies([(2,)], 4)]
    assert (
        others
        == [
            token for token in likely if token != run.token_ids[2] and run.model.tokenizer.decode([token])[0].isupper()
        ][:4]
    )
    for ids in words.copies(words.content, 6, seed=0):
        assert ids[4] == ids[10] != run.token_ids[4] and ids[3] == run.token_ids[3]  # John and John; and
    assert (
        words.copies(words.content, 6, seed=0)
        == words.copies(words.content, 6, seed=0)
        != words.copies(words.content, 6, seed=1)
    )


def test_the_first_token_is_exchanged_for_its_kind_by_what_follows(organism: Model) -> None:
    """It is a word like any other where the tokenizer puts nothing before it; others are judged by the rest."""
    run = organism.run("Mary and John went to the store, John gave a drink to", bos=False)
    words = words_of(run)
    assert words.words[0] == (0,) and words.content[0] == (0,)
    embedding, likely = organism.hf.get_input_embeddings().weight.detach(), {}
    names = [i for i in words._alike(0).tolist() if organism.tokenizer.decode([i])[0].isupper()]
    assert run.token_ids[0] not in names and len(names) == len(words._alike(0)) > other_words.LIKELY
    middle = embedding[names].mean(0)
    near = [
        float(torch.cosine_similarity(embedding[i] - middle, embedding[run.token_ids[0]] - middle, 0)) for i in names
    ]
    for i in sorted(names, key=lambda i: -near[names.index(i)])[: other_words.LIKELY]:
        ids = [i, *run.token_ids[1 : other_words.FOLLOWS]]
        said = organism.run(ids, bos=False).logits.log_softmax(-1)
        likely[i] = sum(float(said[t, ids[t + 1]]) for t in range(len(ids) - 1))
    best = sorted(likely, key=lambda i: -likely[i])[:COPIES]
    assert [ids[0] for ids in words.copies([(0,)], COPIES)] == best
    assert {ids[1:] for ids in words.copies([(0,)], COPIES)} == {run.token_ids[1:]}
    circuit = run.trace("Mary", against="John", through="mlps")
    metric, story = metric_of(circuit), circuit.story()
    lead = metric.of(run.logits[-1])
    lost = [lead - metric.of(organism.run([i, *run.token_ids[1:]], bos=False).logits[-1]) for i in best]
    assert other_words.effects_of_words(run, metric)[0,] == pytest.approx(lost, abs=1e-3)
    assert mean(lost) > story.least and "0:Mary +" in str(story)


def test_words_lead_the_story(story: Story) -> None:
    """All that matter, both signs, by how often they change the answer; function words and marks after them."""
    lines = " ".join(str(story).split())
    first, second = re.search(r"Words that decide: (.*?) Function words and marks: (.*?) Paths that", lines).groups()
    major, minor = ([word for word in story.decisive if word.minor is small] for small in (False, True))
    for text, words in ((first, major), (second, minor)):
        sizes = [float(number) for number in re.findall(r" ([+-]\d+\.\d+)", text)]
        assert sizes == pytest.approx([word.effect for word in words], abs=0.005)
        keys = [(-(word.flips or 0), -abs(word.effect)) for word in words]
        assert keys == sorted(keys) and re.findall(r"(\d+):", text) == [str(word.tokens[0]) for word in words]
    assert {10, 2} == {word.tokens[0] for word in major[:2]} and "4:John -" in first and "14:to" in second
    assert all(abs(word.effect) < story.least for word in story.words if word not in story.decisive)
    assert [word.minor for word in story.words] == sorted(word.minor for word in story.words)
    weak = replace(story, words=tuple(replace(word, effect=0.01, flips=0.0, span=(0, 0.02)) for word in story.words))
    assert "No word alone decides" in str(weak) and "Words that decide" not in str(weak)
    assert "on average" not in str(weak).split("Paths")[0] and not weak.either_way


def test_what_changes_the_answer_leads_whatever_its_mean(story: Story) -> None:
    """A mean is small or negative where some exchanges hurt and others help; how often the answer changes is not."""
    large, often, seldom, other = story.words[:4]
    far = 4 * story.least
    plain = replace(large, effect=2 * far, flips=0.4, span=(0, 3 * far))
    against = replace(often, effect=-far, flips=0.5, span=(-3 * far, 2 * far), lost=0.5, gained=0.5)
    either = replace(seldom, effect=-far, flips=0.25, span=(-3 * far, 2 * far), lost=0.25, gained=0.75)
    mostly = replace(other, effect=-far, flips=0.2, span=(-3 * far, 2 * far), lost=0.2, gained=0.8)
    mixed = replace(story, words=_ranked([plain, either, mostly, against]))
    assert mixed.words == (against, plain, either, mostly)
    assert mixed.decisive == (against, plain, mostly) and mixed.either_way == (either,)
    text = " ".join(str(mixed).split()).split("Paths that")[0]
    span = f"{-3 * far:+.2f} to {2 * far:+.2f}"
    assert f"Words that decide: {word_text(mixed, against)} {span} (another answer in 50%), " in text
    assert f"{word_text(mixed, mostly)} {-far:+.2f} (another answer in 20%). Either way, by what stands there" in text
    assert text.strip().endswith(f"instead: {word_text(mixed, either)} {span} (another answer in 25%).")
    small = (replace(either, minor=True, tokens=(14,)), replace(mostly, minor=True, tokens=(9,)))
    text = " ".join(str(replace(mixed, words=(*mixed.words, *small))).split()).split("Paths that")[0]
    assert text.strip().endswith(
        f"instead: {word_text(mixed, either)} {span} (another answer in 25%). Function words and marks: "
        f"9:, {-far:+.2f} (another answer in 20%), 14:to {span} (another answer in 25%)."
    )


def test_words_that_matter_either_way_are_listed_apart(story: Story) -> None:
    """Some exchanges help and others hurt, so that their mean says nothing; one-sided and small ranges are left out."""
    assert all(word.span[0] <= word.effect <= word.span[1] for word in story.words if word.span)
    far = 3 * story.least
    spans = [(-far, far), (-far, 0.9 * far), (-0.9 * far, far), (-far, 2 * far)]
    words = tuple(replace(story.words[i], effect=0.0, flips=0.0, span=span) for i, span in enumerate(spans))
    decisive = replace(story.words[4], effect=2 * story.least, flips=0.0, span=(-far, far))
    mixed = replace(story, words=(*words, decisive))
    assert mixed.either_way == (words[0], words[3])
    assert f"{-far:+.2f} to {far:+.2f}, " in " ".join(
        str(mixed).split("Either way, by what stands there instead:")[1].split()
    )
    assert "Either way" not in str(replace(story, words=(words[1], decisive)))


def test_of_long_prompts_the_words_with_the_largest_slopes_are_exchanged(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = circuit.run
    assert run is not None
    losses, metric = estimate(run, metric_of(circuit)), metric_of(circuit)
    slopes = {t: abs(losses.of(Writer("embedding", 0, None, t, t))) for t in range(1, len(run))}
    monkeypatch.setattr(other_words, "WORDS", 3)
    few = other_words.effects_of_words(run, metric, copies=2)
    assert {t for (t,) in few} == set(sorted(slopes, key=lambda t: -slopes[t])[:3])


def test_paths_stand_by_what_they_do(story: Story) -> None:
    """A path that holds the answer back is not told first, whatever its influence."""
    against = replace(story.paths[0], effect=-5.0)
    idle = replace(story.paths[1], effect=0.01)
    mixed = replace(story, paths=tuple(_ordered([against, idle, *story.paths[2:]], story.least)))
    assert mixed.paths[-1] == against and mixed.paths[-2] == idle
    text = str(mixed)
    places = [
        text.index(f"Paths that {what}") for what in ("support the answer", "do not matter to it", "hold it back")
    ]
    assert places == sorted(places) and text.index("-5.00") > places[2]
    assert "Paths that hold it back" not in str(story)


def test_like_and_counterfactual_prompts_are_baselines(circuit: Circuit, organism: Model) -> None:
    other = "When Anna and Paul went to the store, Paul gave a drink to"
    patched = circuit.story(counterfactual=other)
    run, names = organism.run(other), {2: "Mary", 4: "John", 10: "John"}
    assert {word.tokens[0] for word in patched.words if abs(word.effect) > 1e-3} <= set(names)
    assert "the prompt 'When Anna and Paul" in patched.baseline and patched.words[0].flips is None
    assert len(run) == len(circuit.tokens)
    with pytest.raises(KeyholeError, match="at least 8 different prompts"):
        circuit.story(like=[other])


def test_roles_are_tested_by_changing_their_words(organism: Model) -> None:
    """Induction holds where the earlier word decides where heads look; a step that looks alike is only called so."""
    example = induction(1, 1, held_out=True)[0]
    run = organism.run(example.text)
    at = example.positions(run)
    story = run.trace(example.answer, against=example.wrong, through="mlps").story()
    steps = {(s.dest, s.src): s for path in story.paths for s in path.steps if s.kind == "move"}
    assert steps[at["END"], at["B"]].tested and ", induction)" in str(story)
    elsewhere = replace(steps[at["END"], at["B"]], src=at["B"] + 2, role="induction")
    assert not _test(
        replace(elsewhere, writers=tuple(replace(w, src=w.src + 2) for w in elsewhere.writers)), run
    ).tested
    untested = replace(
        story, paths=tuple(replace(p, steps=tuple(replace(s, tested=False) for s in p.steps)) for p in story.paths)
    )
    assert "looks like induction" in str(untested)


def test_without_its_model_a_story_has_no_effects(circuit: Circuit, story: Story, organism: Model) -> None:
    read = from_json(to_json(circuit))
    alone = read.story()
    assert alone.metric is alone.answer is None and "Not measured: give the model" in " ".join(str(alone).split())
    assert all(step.effect is None for path in alone.paths for step in path.steps) and alone.words == ()
    again = read.story(organism)
    assert [path.share for path in again.paths] == [path.share for path in story.paths]
    for ours, theirs in zip(again.paths, story.paths, strict=True):
        assert [s.effect for s in ours.steps] == pytest.approx([s.effect for s in theirs.steps], abs=1e-4)
    with pytest.raises(KeyholeError, match="other weights"):
        read.story(tiny_model("gpt2"))


def test_what_paths_leave_unsaid_has_advice(organism: Model, circuit: Circuit, story: Story) -> None:
    """Where little is kept or nothing could be measured, it says what to ask; and what an effect above the lead is."""
    said = " ".join(story_text(story, 10**6).split())
    assert "--sufficient" not in said and "larger than the whole" not in said
    few = " ".join(str(replace(story, kept=0.05)).split())
    assert "alone 5% of the answer's gap" in few and "--sufficient searches for edges that carry it." in few
    over = (replace(story.paths[0], share=0.011, effect=20.0), *story.paths[1:])
    assert "One path's effect (+20.00) is larger than the whole logit difference of +16.13: cut alone," in " ".join(
        str(replace(story, paths=over)).split()
    )
    assert "whole" not in str(replace(story, paths=over, metric="log-probability", answer=-0.5))
    other = "When Mary and John went to the park, John gave a drink to"
    same = circuit.story(counterfactual=other)
    text = " ".join(str(same).split())
    assert same.kept is None and "the gap is too small to say what the paths keep of it. To measure it, give" in text
    assert text.count("(--counterfactual)") == text.count("(--like FILE)") == text.count("--sufficient") == 1
    assert not {"--like", "--sufficient"} & set(str(from_json(to_json(circuit)).story()).split())  # no model: no advice


# -- prompts -------------------------------------------------------------------------------------------------------


def moves_of(story: Story) -> list[list[tuple[int, int]]]:
    return [[(step.dest, step.src) for step in path.steps if step.kind == "move"] for path in story.paths]


def test_indirect_objects(organism: Model) -> None:
    """One of the two largest paths moves the receiver to the end: a name mover, where the task's roles are known."""
    for example in ioi(2, 3, held_out=True):
        run = organism.run(example.text)
        circuit, at = run.trace(example.answer, against=example.wrong, through="mlps"), example.positions(run)
        plain, told = circuit.story(), circuit.story(roles=at)
        first = next(path for path in told.paths if path.steps[0].dest == at["IO"])
        mover = next(step for step in first.steps if step.kind == "move")
        assert first in told.paths[:2] and (mover.dest, mover.src) == (at["END"], at["IO"])
        assert mover.role == "name mover" and mover.side in ("value", "src") and (mover.effect or 0) > 0
        assert "name mover" in str(told) and not any(word in str(plain) for word in TASK_WORDS)
        assert [path.share for path in plain.paths] == [path.share for path in told.paths] and told.held > 0.5
        assert {at["IO"], at["S2"]} <= {word.tokens[0] for word in told.words[:3]}


def test_greater_than(organism: Model) -> None:
    example = greater_than(1, 0, held_out=True)[0]
    run = organism.run(example.text)
    at = example.positions(run)
    told = run.trace(list(example.answers), against=example.wrong, through="mlps").story(roles=at)
    largest = max(told.paths, key=lambda path: path.share)
    assert largest.steps[0].dest == at["YY"] and told.words[0].tokens == (at["YY"],)
    assert [(at["END"], at["YY"])] in moves_of(told) and "moved by heads" in str(told) and "aims heads" in str(told)


def test_induction(organism: Model) -> None:
    """What followed the word before is found by the previous-token head, and moved; tokens alone say so."""
    example = induction(1, 1, held_out=True)[0]
    run = organism.run(example.text)
    at = example.positions(run)
    told = run.trace(example.answer, against=example.wrong, through="mlps").story()
    assert told.paths[0].steps[0].dest == at["B"] and moves_of(told)[0] == [(at["END"], at["B"])]
    roles = {(step.dest, step.src): step.role for path in told.paths for step in path.steps if step.kind == "move"}
    assert roles[at["END"], at["B"]] == "induction" and roles[at["B"], at["A"]] == "previous token"
    assert 'A role without "looks like" was tested by changing' in " ".join(str(told).split())


def test_a_prompt_of_ones_own(organism: Model) -> None:
    told = organism.run(OWN).trace(through="mlps").story(top=3)
    assert told.metric == "log-probability" and len(told.paths) == 3
    lines = str(told).splitlines()
    assert lines[0].startswith("organism, answer at 11:to: 'Paul'") and lines[1].startswith("Words that decide:")
    assert "3 paths from words hold" in str(told)
    assert all(path.steps[0].kind == "word" and len(path.steps) > 1 for path in told.paths)
    assert max(map(len, lines)) <= 100 and max(map(len, story_text(told, 60).splitlines())) <= 70
    assert story_text(told, 60).replace("\n", " ").split() == str(told).replace("\n", " ").split()


# -- words ---------------------------------------------------------------------------------------------------------


def test_role_words() -> None:
    ids = [0, 7, 8, 9, 7, 5]
    at = {"IO": 1, "S1": 3, "S2": 4, "END": 5}
    assert role_of((4, 1), None, ids, {}) == "duplicate token" and role_of((4, 2), None, ids, {}) == "induction"
    assert role_of((3, 2), None, ids, {}) == "previous token" and role_of((5, 1), None, ids, {}) is None
    assert role_of((2, 1), None, [0, 7, 7], {}) == "duplicate token or previous token"
    assert role_of((5, 1), None, ids, at) == "name mover" and role_of((5, 1), (5, 2), ids, at) is None
    assert role_of((5, 4), (5, 1), ids, at) == "S-inhibition"
    assert role_of((5, 4), None, ids, at) == "previous token"  # what it writes is read by no name mover
    assert role_of((5, 1), None, ids, {"IO": 1, "END": 5}) is None


def test_roles_of_several_tokens_stand_nowhere(organism: Model) -> None:
    text = "Mary and John went"
    example = Example("demo", text, "to", (), ("to",), {"BOTH": (0, 13), "S": (9, 13), "END": (14, 18)}, "", "")
    run = organism.run(text)
    assert example.positions(run) == {role: example.position(run, role) for role in ("S", "END")} == {"S": 3, "END": 4}


def test_a_step_reads_as_what_it_is(story: Story) -> None:
    top = story.paths[0]
    assert [step.kind for step in top.steps] == ["word", "stay", "move", "stay"]
    numbers = [f"[{step.influence:.0%}, {step.effect:+.2f}]" for step in top.steps]
    assert f"{top.share:5.1%} {top.effect:+7.2f}  2:Mary {numbers[0]} -> mlp 0 {numbers[1]}" in str(story)
    assert f"moved by head 1.6 (14:to <- 2:Mary) {numbers[2]}" in str(story)
    assert repr(story).startswith("Story(paths=")


def of_many_mlps() -> Circuit:
    """A word that six MLPs read, and the answer them; a tenth is constant, another was not followed."""
    shares = (0.1, 0.25, 0.15, 0.05, 0.2, 0.05)
    mlps = [Node("mlp", layer, None, 1, 1) for layer in range(len(shares))]
    ends = [Node("mlp_offset", 5, None, 1, 1), Node("head", 3, 2, 1, 0)]
    nodes = (Node("target", None, None, 1, 1), Node("embedding", 0, None, 1, 1), *mlps, *ends)
    handed = [(2 + i, 0, "target", share) for i, share in enumerate(shares)]
    handed += [(1, 2 + i, "mlp", share) for i, share in enumerate(shares)]
    handed += [(8, 0, "target", 0.1), (9, 0, "target", 0.1)]
    return Circuit(
        model={"name": "hand-made"},
        versions={},
        parameters=Accpp(end=1, seeds="linear", target_ids=(3,), target_text=("so",)),
        errors={},
        token_ids=(5, 6),
        tokens=("and", "so"),
        nodes=nodes,
        attention=(None,) * len(nodes),
        edges=tuple(Edge(one, other, side, share, share, share, (), share) for one, other, side, share in handed),
        firings=(),
        influence=(1.0, 0.8, *shares, 0.1, 0.1),
        leaves=(None, "embedding", *[None] * len(shares), "constant", "pruned"),
    )


def test_many_writers_are_named_by_the_largest() -> None:
    told = of_many_mlps().story()
    (path,) = told.paths
    word, stay = path.steps
    assert path.share == pytest.approx(0.8) and word.influence == pytest.approx(0.8)
    assert [writer.layer for writer in stay.writers] == [0, 1, 2, 4] and stay.more == 2
    assert stay.influence == pytest.approx(0.1 + 0.25 + 0.15 + 0.2)
    assert (told.constants, told.unfollowed) == (0.1, {"pruned": 0.1})
    lines = str(told).splitlines()
    assert lines[1] == "80.0%  1:so [80%] -> mlps 0,1,2,4,+2 [70%] -> answer"
    assert lines[2] == "1 path from words holds 80% of its influence; constants 10%; not followed: pruned 10%."
    assert "+n: so many more (--long names them); pruned: too weak" in " ".join(lines)
    long = story_text(told, long=True).splitlines()
    assert long[1] == "80.0%  1:so [80%] -> mlps 0,1,2,4 with mlps 3,5 [70%] -> answer" and "+n" not in " ".join(long)
    assert [writer.layer for writer in stay.others] == [3, 5] and not word.others


def test_what_has_no_story_says_why(organism: Model, circuit: Circuit) -> None:
    heads = organism.run(IOI).trace("Mary", through="heads")
    with pytest.raises(KeyholeError, match='trace it with through="mlps"'):
        heads.story()
    with pytest.raises(KeyholeError, match="at least one path, not 0"):
        circuit.story(top=0)
    with pytest.raises(KeyholeError, match=r"from 0 to 14 in this prompt, not \{'IO': 15\}"):
        circuit.story(roles={"IO": 15, "S2": 3})


def test_routes_know_where_they_stay() -> None:
    route = Route(((5, 2), (2, 1)), 1, 0.5)
    assert [route.token(stage) for stage in range(3)] == [5, 2, 1]


def test_what_the_chat_template_wrote_is_no_content(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed after what was said, like function words, and no copy of the prompt has other words there."""
    template = (
        "<bos>{% for message in messages %}{% if loop.first and message.role == 'user' %} Leo: good.{% endif %}"
        " {{ {'system': 'Leo', 'user': 'Anna', 'assistant': 'Paul'}[message.role] }}: {{ message.content }}."
        "{% endfor %}{% if add_generation_prompt %} Paul:{% endif %}"
    )
    monkeypatch.setattr(organism.tokenizer, "chat_template", template)
    said = [{"role": "user", "content": "Mary gave Anna a cup"}, {"role": "assistant", "content": "Paul went"}]
    run = organism.run([*said, {"role": "user", "content": "Look : Anna"}])
    around = template_tokens(run)
    assert "".join("." if t in around else "x" for t in range(len(run))) == "...x...xxxxx...xx...xxx..."
    assert {run.tokens[t] for word in words_of(run).content for t in word} == {
        *("good", "Mary", "gave", "Anna", "cup", "Paul", "went", "Look")
    }
    begun = organism.run([{"role": "system", "content": "good"}, *said])  # the assistant goes on: nothing follows
    assert sorted(template_tokens(begun)) == [0, 1, 2, 4, 5, 6, 12, 13, 14]
    words = deciding_words(run, Metric(len(run) - 1, (run.token_ids[8],)), {})
    assert {word.tokens[0] for word in words if not word.minor} == {3, 7, 8, 9, 11, 15, 16, 20, 22}
    assert template_tokens(organism.run("Paul : Mary")) == {0}  # a text that is no conversation
