"""Stories: routes are what walking every path says, effects what a removal by hand says, words what roles allow."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

import pytest
import torch

from conftest import prompts_of, rich_circuit, tiny_model
from keyhole import Circuit, KeyholeError, Model, Run
from keyhole.circuits import Edge, Node
from keyhole.circuits.files import from_json, to_json
from keyhole.circuits.parameters import Accpp
from keyhole.circuits.writer import Writer
from keyhole.intervene import Metric, answers_without, estimate
from keyhole.story import Path, Step, Story
from keyhole.story import needed as needed_words
from keyhole.story.roles import role_of
from keyhole.story.routes import Route, Ways
from keyhole.story.text import decisive_pieces, story_text
from keyhole.story.walk import groups_on
from keyhole.tasks import Example, greater_than, induction, ioi
from keyhole.tracing.mlps.flow import Through
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
        into[edge.target].append(edge)

    def walk(nodes: list[int], share: float) -> Iterator[tuple[list[int], float]]:
        if not into[nodes[-1]]:
            yield nodes, share
        for edge in into[nodes[-1]]:
            if edge.influence:
                yield from walk([*nodes, edge.source], share * edge.influence / circuit.influence[nodes[-1]])

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
        for group in groups_on(ways, route).values():
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
        for (kind, stage), group in groups_on(ways, route).items():
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
    assert "a direction has no answer to lose" in str(told)


# -- effects -------------------------------------------------------------------------------------------------------


def by_hand(run: Run, writers: tuple[Writer, ...]) -> float:
    """The logit difference of Mary and John in the model's own pass, with MLPs, words and heads silenced by hooks."""
    hf, read = run.model.hf, dict[int, torch.Tensor]()
    blocks, size = hf.transformer.h, run.model.dims.d_head
    hooks = [
        block.attn.c_attn.register_forward_hook(lambda _, __, out, layer=layer: read.update({layer: out[0]}))
        for layer, block in enumerate(blocks)
    ]

    def moved(one: Writer) -> torch.Tensor:
        """What a head moves in this very pass; what it would move from anywhere is not its own, but the layer's."""
        block = blocks[one.layer]
        q, k, v = read[one.layer].view(len(run), 3, -1, size)[:, :, one.head].unbind(1)
        attention = (k[: one.dest + 1] @ q[one.dest] / size**0.5).softmax(0)[one.src]
        always = (block.attn.c_attn.bias + block.ln_1.bias @ block.attn.c_attn.weight).view(3, -1, size)[2, one.head]
        return attention * (v[one.src] - always) @ block.attn.c_proj.weight[one.head * size : (one.head + 1) * size]

    def silence(one: Writer, _module: object, _args: object, out: Any) -> Any:
        first = (out[0] if isinstance(out, tuple) else out).clone()
        first[0, one.dest] -= moved(one) if one.kind == "head" else first[0, one.dest].clone()
        return (first, *out[1:]) if isinstance(out, tuple) else first

    for one in writers:
        block = blocks[one.layer]
        module = {"mlp": block.mlp, "head": block.attn, "embedding": hf.transformer.drop}[one.kind]
        hooks.append(module.register_forward_hook(partial(silence, one)))
    with torch.no_grad():
        logits = hf(torch.tensor([run.token_ids])).logits[0, -1]
    for hook in hooks:
        hook.remove()
    mary, john = (run.model.tokenizer.convert_tokens_to_ids(name) for name in ("Mary", "John"))
    return float(logits[mary] - logits[john])


def test_effects_are_removals(circuit: Circuit, story: Story) -> None:
    run = circuit.run
    assert run is not None and story.metric == "logit difference"
    before = by_hand(run, ())
    assert story.answer == pytest.approx(before, abs=1e-4)
    kinds = set()
    for step in (step for path in story.paths for step in path.steps):
        assert step.effect is not None
        assert step.effect == pytest.approx(by_hand(run, step.writers) - before, abs=1e-3)
        kinds |= {writer.kind for writer in step.writers}
    assert kinds == {"embedding", "mlp", "head"} and min(path.steps[0].effect or 0 for path in story.paths) < -1


def test_without_its_model_a_story_has_no_effects(circuit: Circuit, story: Story, organism: Model) -> None:
    read = from_json(to_json(circuit))
    alone = read.story()
    assert alone.metric is alone.answer is None and "Effects were not measured: give the model" in str(alone)
    assert all(step.effect is None for path in alone.paths for step in path.steps)
    again = read.story(organism)
    assert [path.share for path in again.paths] == [path.share for path in story.paths]
    for ours, theirs in zip(again.paths, story.paths, strict=True):
        assert [s.effect for s in ours.steps] == pytest.approx([s.effect for s in theirs.steps], abs=1e-4)
    with pytest.raises(KeyholeError, match="other weights"):
        read.story(tiny_model("gpt2"))


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
        assert mover.role == "name mover" and mover.side in ("value", "src") and (mover.effect or 0) < 0
        assert "name mover" in str(told) and not any(word in str(plain) for word in TASK_WORDS)
        assert [path.share for path in plain.paths] == [path.share for path in told.paths] and told.held > 0.5


def test_greater_than(organism: Model) -> None:
    example = greater_than(1, 0, held_out=True)[0]
    run = organism.run(example.text)
    at = example.positions(run)
    told = run.trace(list(example.answers), against=example.wrong, through="mlps").story(roles=at)
    assert told.paths[0].steps[0].dest == at["YY"] and moves_of(told)[0] == [(at["END"], at["YY"])]
    assert "moved by heads" in str(told) and "aims heads" in str(told)


def test_induction(organism: Model) -> None:
    """What followed the word before is found by the previous-token head, and moved; tokens alone say so."""
    example = induction(1, 1, held_out=True)[0]
    run = organism.run(example.text)
    at = example.positions(run)
    told = run.trace(example.answer, against=example.wrong, through="mlps").story()
    assert told.paths[0].steps[0].dest == at["B"] and moves_of(told)[0] == [(at["END"], at["B"])]
    roles = {(step.dest, step.src): step.role for path in told.paths for step in path.steps if step.kind == "move"}
    assert roles[at["END"], at["B"]] == "induction" and roles[at["B"], at["A"]] == "previous token"
    assert "Role words go by the positions of tokens alone." in " ".join(str(told).split())


def test_a_prompt_of_ones_own(organism: Model) -> None:
    told = organism.run(OWN).trace(through="mlps").story(top=3)
    assert told.metric == "log-probability" and len(told.paths) == 3
    lines = str(told).splitlines()
    assert lines[0].startswith("organism, answer at 11:to: 'Paul'") and "3 paths from words hold" in lines[1]
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
    numbers = [f"[{step.influence:.0%}, {step.effect / story.answer:+.0%}]" for step in top.steps]
    assert f"{top.share:5.1%}  2:Mary {numbers[0]} -> mlp 0 {numbers[1]}" in str(story)
    assert f"moved by head 1.6 (14:to <- 2:Mary) {numbers[2]}" in str(story)
    assert repr(story).startswith("Story(paths=<tuple of 5>, weaker=")


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
    assert lines[1] == "1 path from words holds 80% of its influence; constants 10%; not followed: pruned 10%"
    assert lines[2] == "80.0%  1:so [80%] -> mlps 0,1,2,4,+2 [70%] -> answer"
    assert "+n: so many more (--long names them); pruned: too weak" in " ".join(lines)
    long = story_text(told, long=True).splitlines()
    assert long[2] == "80.0%  1:so [80%] -> mlps 0,1,2,4 with mlps 3,5 [70%] -> answer" and "+n" not in " ".join(long)
    assert [writer.layer for writer in stay.others] == [3, 5] and not word.others


@pytest.mark.parametrize(
    ("influence", "effect", "answer", "said"),
    [
        (0.28, -0.3, 10.0, "[28%, -3%: not needed alone]"),
        (0.28, 0.44, 10.0, "[28%, +4%: not needed alone]"),  # nor where the answer gains a little
        (0.28, -0.6, 10.0, "[28%, -6%]"),
        (0.19, -0.3, 10.0, "[19%, -3%]"),
        (0.196, -0.3, 10.0, "[20%, -3%: not needed alone]"),  # as it is told
        (0.5, -0.04, -0.4, "[50%, -0.04: not needed alone]"),  # in log-probability
        (0.5, -0.06, -0.4, "[50%, -0.06]"),
    ],
)
def test_what_is_large_and_not_needed_is_marked(influence: float, effect: float, answer: float, said: str) -> None:
    step = Step("stay", 1, 1, (Writer("mlp", 2, None, 1, 1),), 0, influence, effect=effect)
    metric = "logit difference" if answer > 0 else "log-probability"
    told = Story(of_many_mlps(), (Path(0.5, (step,)),), 0.5, 0.0, {}, metric, answer)
    assert str(told).splitlines()[2] == f"50.0%  mlp 2 {said} -> answer"


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


# -- words that no path tells ----------------------------------------------------------------------------------------


def test_needed_words_are_those_that_cost_most(circuit: Circuit, story: Story) -> None:
    run, answer = circuit.run, story.answer
    assert run is not None and answer is not None
    metric = Metric(len(run) - 1, circuit.parameters.target_ids, circuit.parameters.against_ids)
    told = {path.steps[0].src for path in story.paths}
    others = [t for t in range(1, len(run)) if t not in told]
    after = answers_without(run, [[Writer("embedding", 0, None, t, t)] for t in others], metric)
    lost = {t: value - answer for t, value in zip(others, after, strict=True) if value - answer <= -0.2 * answer}
    assert len(lost) >= 5
    assert [word.dest for word in story.needed] == sorted(lost, key=lambda t: lost[t])[:5]
    for word in story.needed:
        assert word.effect == pytest.approx(lost[word.dest], rel=1e-4) and word.writers[0].kind == "embedding"
    shares = {
        node.dest: i for node, i in zip(circuit.nodes, circuit.influence, strict=True) if node.kind == "embedding"
    }
    assert [word.influence for word in story.needed] == [shares.get(word.dest, 0.0) for word in story.needed]
    assert "Needed, too, though no path above begins there: 10:John [2%, -98%]," in str(story)
    assert [word["dest"] for word in story.record()["needed"]] == [word.dest for word in story.needed]


def test_decisive_words_are_those_the_answer_loses_most_without(circuit: Circuit, story: Story) -> None:
    """Of all words, whether a path begins there or not, in the order of what is lost; gains do not count."""
    assert story.answer is not None
    words = {path.steps[0].src: path.steps[0] for path in story.paths} | {word.src: word for word in story.needed}
    lost = sorted(
        (one for one in words.values() if (one.effect or 0.0) <= -0.2 * story.answer), key=lambda one: one.effect or 0.0
    )
    told = " ".join(decisive_pieces(story))
    assert told.startswith("Decisive words, without which the answer loses most: ")
    assert re.findall(r"(\d+):", told) == [str(one.dest) for one in lost[:5]]
    assert {2, 10} <= {one.dest for one in lost[:5]}
    gains = [replace(step, effect=-(step.effect or 0.0)) for step in story.needed]
    kept = " ".join(decisive_pieces(replace(story, needed=tuple(gains))))
    assert not set(re.findall(r"(\d+):", kept)) & {str(one.dest) for one in story.needed}
    assert decisive_pieces(replace(story, answer=None)) == []  # nothing was measured


def test_of_many_words_those_with_the_largest_slopes_are_silenced(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = circuit.run
    assert run is not None
    metric = Metric(len(run) - 1, circuit.parameters.target_ids, circuit.parameters.against_ids)
    every = needed_words.words_silenced(run, {2, 14}, metric)
    assert sorted(every) == [t for t in range(1, len(run)) if t not in (2, 14)]
    losses = estimate(run, metric)
    slopes = {t: abs(losses.of(Writer("embedding", 0, None, t, t))) for t in every}
    monkeypatch.setattr(needed_words, "MOST", 3)
    few = needed_words.words_silenced(run, {2, 14}, metric)
    assert set(few) == set(sorted(slopes, key=lambda t: -slopes[t])[:3])
    assert few == pytest.approx({t: every[t] for t in few}, rel=1e-4)


def test_a_small_lead_has_no_shares(story: Story) -> None:
    """Everything is many times as large."""
    assert story.in_shares and "[38%, -171%]" in str(story)
    small = replace(story, answer=0.9)
    assert not small.in_shares and "%, -27.6" in str(small).replace("\n", " ")
    assert "by how much the logit difference (+0.90)" in " ".join(str(small).split())


def test_effects_above_zero_are_explained(story: Story) -> None:
    assert "stronger without them" not in str(story)
    path = story.paths[0]
    helped = replace(path, steps=(replace(path.steps[0], effect=3.0), *path.steps[1:]))
    assert "Above 0 the answer is stronger without them." in " ".join(str(replace(story, paths=(helped,))).split())


def test_without_a_model_no_word_is_called_needed(circuit: Circuit) -> None:
    assert from_json(to_json(circuit)).story().needed == ()
