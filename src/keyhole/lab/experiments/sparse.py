"""Do few slices or channels make up the attention of single heads? GPT-2 on IOI prompts, or what stands in for it."""

from functools import partial

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.figures import save
from keyhole.figures.sparse import contributions_figure, n_recon_figure, slice_counts_figure, slice_map_figure
from keyhole.figures.style import GREY, RED, blank, heading, legend, plain, tidy
from keyhole.lab.ioi_studies import Measured, is_gpt2, judged, measured, stood_in
from keyhole.lab.job import Experiment, Job, MissingModelError, Numbers
from keyhole.lab.outcome import Outcome
from keyhole.lab.sparse import Head
from keyhole.lab.sparse_summary import Spread, agreement, pooled, spread, summaries, summarise
from keyhole.models.precision import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.channels import Channels
from keyhole.qk.omega import omega
from keyhole.qk.slices import slice_sets, slice_use

_FEW = 1 / 3  # of a head's slices
_OFTEN = 1 / 4  # of the firings
_TEXT = "The unrelated text is plain sentences about the names and things of the task, handing over among them."


def rebuilt(job: Job) -> Outcome:
    """Is N_recon small for most heads, below that of rotated bases, and different between roles?"""
    seen = measured(job)
    each = summaries(seen.ioi)
    if not each:
        raise MissingModelError(
            f"no head of {seen.model.name} fires in five of {seen.ioi.prompts} prompts, so none can be counted: give "
            "another model."
        )
    channels = max(table.channels for table in seen.ioi.tables)
    small = sum(one.n_recon.median <= channels * _FEW for one in each) / len(each)
    fewer = sum(one.fewer.high < 0 for one in each) / len(each)
    whole = pooled(seen.ioi)
    roles = {role: summarise([seen.ioi.of(head) for head in heads]).n_recon for role, heads in seen.roles.items()}
    roles = {role: one for role, one in roles.items() if one.low <= one.high}  # without those that hardly fire
    differ = any(a.high < b.low for a in roles.values() for b in roles.values())
    numbers: Numbers = {"heads": len(each), "N_recon": whole.n_recon.mean, "N_recon, rotated": whole.n_rotated.mean}
    numbers |= {"share of heads with few": small, "share of heads below rotated": fewer}
    numbers |= {f"N_recon, {role}": [one.mean, one.low, one.high] for role, one in roles.items()}
    by_role = ", ".join(f"{role} {_text(one)}" for role, one in roles.items()) or "none fires"
    text = (
        f"{len(each)} heads fire on {seen.ioi.prompts} prompts: N_recon {_text(whole.n_recon)} of {channels} channels, "
        f"in rotated bases {_text(whole.n_rotated)}. Its median is a third of the channels or less in {small:.0%} of "
        f"the heads, and it is smaller than in rotated bases beyond doubt in {fewer:.0%}. By role: {by_role}."
    )
    path = save(n_recon_figure([seen.ioi, seen.unrelated]), job.folder / "n-recon.png")
    holds = [small > 0.5, fewer > 0.5, differ]
    return Outcome(judged(job, holds), text, numbers, (path,), f"Intervals over prompts. {_TEXT} {stood_in(job)}")


def _text(one: Spread) -> str:
    return f"{one.mean:.1f} [{one.low:.1f}, {one.high:.1f}]"


def contributed(job: Job) -> Outcome:
    """Do a few slices make up a negative and a positive score, and not those of the largest singular values?"""
    seen = measured(job)
    heads = dict.fromkeys([*seen.roles.get("S-inhibition", ()), *_heads(seen, 8)])
    both = [_extremes(seen, head) for head in heads]
    splits = next((two for two in both if two[0].score < 0 < two[1].score), both[0])
    head = splits[0].layer, splits[0].head
    numbers: Numbers = {}
    lines, holds = [], []
    for sign, split in zip(("negative", "positive"), splits, strict=True):
        used = slice_sets(split.terms[None])[0]
        n, size = int(used.sum()), len(used)
        first = int(used[:n].sum())
        found = few_and_elsewhere(n, first, size)
        holds += found if (split.score < 0) == (sign == "negative") else [False, False]
        numbers |= {f"{sign} score": split.score, f"{sign} slices": n, f"{sign} among the largest": first}
        numbers[f"{sign} among the largest, chance"] = n * n / size
        lines.append(
            f"{'Lowest' if sign == 'negative' else 'Highest'} score {split.score:.1f} (weight {split.attention:.2f}): "
            f"{n} of {size} slices make it up, {first} of them among the {n} largest singular values (by chance "
            f"{n * n / size:.1f})."
        )
    title = f"What each slice adds to a score of head {head[0]}.{head[1]}"
    path = save(contributions_figure(splits, title=title), job.folder / "slices.png")
    played = [role for role, own in seen.roles.items() if head in own]
    note = (
        f"Head {head[0]}.{head[1]} ({', '.join(played)}), at END; the paper's 8.6 is for S-inhibition. {stood_in(job)}"
    )
    return Outcome(judged(job, holds, first=holds[0] and holds[2]), "\n".join(lines), numbers, (path,), note)


def few_and_elsewhere(n: int, first: int, size: int) -> list[bool]:
    """Are n of `size` slices few, and no more among the n largest (`first`) than n random ones would be, n^2 / size?

    >>> few_and_elsewhere(3, 0, 16), few_and_elsewhere(3, 1, 16), few_and_elsewhere(9, 1, 16)
    ([True, True], [True, False], [False, False])
    """
    few = n <= _FEW * size
    return [few, few and first <= n * n / size]


def _heads(seen: Measured, most: int = 4) -> list[Head]:
    """Heads with a role, which must be there."""
    heads = seen.heads(most)
    if not heads:
        raise MissingModelError(
            f"no head of {seen.model.name} that looks clearly where a role of IOI prompts needs it fires there: give "
            "another model."
        )
    return heads


def _extremes(seen: Measured, head: Head) -> tuple[Channels, Channels]:
    """The lowest and the highest score that the head gives at END, over the first prompts."""
    splits = []
    for example in seen.examples[:16]:
        run = seen.model.run(example.text)
        end = example.position(run, "END")
        scores = run.layer(head[0]).scores([head[1]], [end])[0, 0, 1 : end + 1]
        for at in (int(scores.argmin()) + 1, int(scores.argmax()) + 1):
            splits.append(run.channels(head, end, at, basis="homogeneous"))
    return min(splits, key=lambda one: one.score), max(splits, key=lambda one: one.score)


def mapped(job: Job, firing: bool) -> Outcome:
    """Does a head use the same slices again and again, and others when it does not fire?"""
    seen = measured(job)
    heads = _heads(seen)
    numbers: Numbers = {}
    lines, again, others = [], [], []
    for head in heads:
        alike, table = agreement(seen.ioi, head, seed=job.seed), seen.ioi.of(head, firing=firing)
        own, chance = (alike.firing, alike.chance) if firing else (alike.quiet, alike.chance_quiet)
        again.append(own > 1.5 * chance)
        others.append(alike.between < own)
        name = f"{head[0]}.{head[1]}"
        sizes = spread(table.slices, table.pairs[:, 0])
        often = int((table.usage >= 0.5).sum())
        numbers |= {f"{name} slices": sizes.mean, f"{name} in half of the pairs": often, f"{name} alike": own}
        numbers |= {f"{name} alike, chance": chance, f"{name} alike, firing and not": alike.between}
        lines.append(
            f"{name}: {_text(sizes)} of {table.used.shape[1]} slices, {often} of them in half of the {len(table)} "
            f"pairs; sets are alike by {own:.2f} (reshuffled {chance:.2f}, firing against not {alike.between:.2f})."
        )
    path = save(slice_map_figure(seen.ioi, heads), job.folder / "slices.png")
    roles = ", ".join(f"{role} {h[0]}.{h[1]}" for role, own in seen.roles.items() for h in own if h in heads)
    holds = [sum(again) > len(again) / 2] + ([] if firing else [sum(others) > len(others) / 2])
    note = f"Alike: shared slices over all slices of two pairs from different prompts. Heads: {roles}. {stood_in(job)}"
    return Outcome(judged(job, holds), "\n".join(lines), numbers, (path,), note)


def sizes(job: Job) -> Outcome:
    """How many slices does a firing use, on IOI and on unrelated text, and how many in rotated bases?"""
    seen = measured(job)
    numbers: Numbers = {}
    lines, holds = [], []
    for study in (seen.ioi, seen.unrelated):
        whole = pooled(study)
        n = max(table.used.shape[1] for table in study.tables)
        counts = torch.cat([table.slices for table in study.tables if table.firing])
        often = float(((counts == 2) | (counts == 3)).double().mean())
        holds += [whole.slices.quantiles[-2] <= n * _FEW, often >= _OFTEN]
        numbers |= {f"{study.name}: slices": whole.slices.mean, f"{study.name}: rotated": whole.slices_rotated.mean}
        numbers |= {f"{study.name}: upper quartile": whole.slices.quantiles[-2], f"{study.name}: 2 or 3": often}
        lines.append(
            f"{study.name}: {_text(whole.slices)} of {n} slices in {whole.pairs} firings (median "
            f"{whole.slices.median:.0f}, upper quartile {whole.slices.quantiles[-2]:.0f}), 2 or 3 in {often:.0%}; in "
            f"rotated bases {_text(whole.slices_rotated)}."
        )
    path = save(slice_counts_figure([seen.ioi, seen.unrelated]), job.folder / "counts.png")
    note = (
        "20 of 64 slices are about a third, which is asked of the upper quartile here; often means a quarter of the "
        f"firings or more. The paper names no control; rotated bases are told beside it. {_TEXT} {stood_in(job)}"
    )
    return Outcome(judged(job, holds), "\n".join(lines), numbers, (path,), note)


# -- the signal of a name mover in every token ---------------------------------------------------------------------


def names_apart(job: Job) -> Outcome:
    """Does the residual in a name mover's frequent slices separate names from other words?"""
    seen = measured(job)
    movers = seen.roles.get("name mover", ())
    if not movers:
        raise MissingModelError(
            f"no head of {seen.model.name} is a name mover, since none looks from END at IO clearly more than at S1 "
            "and S2 in both orders of names: give a model that has one."
        )
    head = movers[0]
    runs = seen.model.run_many([one.text for one in seen.examples[:64]])
    use = slice_use(runs, head, threshold=0.5 if is_gpt2(job.model) else 0.25)
    often = [int(k) for k in (use.used.double().mean(0) >= 0.4).nonzero()] or [int(use.counts.argmax())]
    values: dict[bool, list[float]] = {True: [], False: []}
    words: dict[tuple[str, bool], list[float]] = {}
    for example, run in zip(seen.examples, runs, strict=False):
        named = {example.position(run, role) for role in ("IO", "S1", "S2")}
        for at, size in enumerate(_sizes(run, head, often)):
            if at:  # the first token is no word
                values[at in named].append(size)
                words.setdefault((run.tokens[at].strip(), at in named), []).append(size)
    name, other = (torch.tensor(values[kind]) for kind in (True, False))
    apart = float((name[:, None] > other).double().mean() + (name[:, None] == other).double().mean() / 2)
    numbers: Numbers = {"slices": len(often), "names": float(name.mean()), "other words": float(other.mean())}
    numbers["name above other word"] = apart
    text = (
        f"Head {head[0]}.{head[1]}, {len(often)} slices seen in 40 % of {len(use.pairs)} firings or more: the signal "
        f"is {name.mean():.2f} in names and {other.mean():.2f} in other words; a name is above another word in "
        f"{apart:.0%}."
    )
    path = save(_words_figure(words, head), job.folder / "words.png")
    return Outcome(judged(job, [apart > 0.9]), text, numbers, (path,), f"Asked: nine in ten. {stood_in(job)}")


def _sizes(run: Run, head: Head, often: list[int]) -> list[float]:
    """How long is each token's normalised residual, as the head's keys read it, in these slices? |v_k . x|."""
    layer, index = head
    om, kv = omega(run.model, layer, "homogeneous"), run.model.weights(layer).kv(index)
    with exact_matmul():
        read = run.layer(layer).k[kv].to(om.G_s.dtype) @ om.G_s[index, often].T
    return [float(size) for size in read.norm(dim=-1)]


def _words_figure(words: dict[tuple[str, bool], list[float]], head: Head) -> Figure:
    means = {word: sum(values) / len(values) for word, values in words.items()}
    shown = sorted(means, key=lambda word: -means[word])
    figure = blank(9.0, 3.6)
    heading(figure, f"Signal of head {head[0]}.{head[1]} in each word, largest first")
    axis = figure.subplots()
    tidy(axis, x=f"{len(shown)} words, from {plain(shown[0][0])} to {plain(shown[-1][0])}", y="norm in the slices")
    axis.bar(range(len(shown)), [means[w] for w in shown], color=[RED if w[1] else GREY for w in shown], width=1.0)
    legend(figure, [Patch(color=RED, label="names"), Patch(color=GREY, label="other words")], columns=2, beneath=True)
    return figure


RUNS: dict[str, Experiment] = {
    "svf-fig8a": rebuilt,
    "svt-fig1": contributed,
    "svt-fig2": partial(mapped, firing=True),
    "svt-fig3": sizes,
    "svt-fig8": partial(mapped, firing=False),
    "svt-fig9": names_apart,
}
