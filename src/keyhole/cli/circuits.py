"""Commands that explain: one firing, one MLP, the circuit behind an answer."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli import measuring as names_of_edges
from keyhole.cli import prompt_text
from keyhole.cli.from_record import from_records
from keyhole.cli.measuring import Measuring, measure, search
from keyhole.cli.options import (
    DestOption,
    JsonOption,
    KeysOption,
    PromptArgument,
    PromptOptions,
    SrcOption,
    TauOption,
    read_answers,
    read_head,
    read_place,
    read_start,
    read_starts,
    read_tau,
    with_svt,
    write_each,
)
from keyhole.errors import KeyholeError
from keyhole.files import require_file
from keyhole.settings.tracing import SvtSettings, Through, TraceSettings

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.answers import Target


@from_records()
def explain(
    prompt: PromptArgument = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="Layer and head whose weight is explained, such as 3.6. Default: none; give --head or --mlp."
        ),
    ] = None,
    dest: DestOption = "-1",
    src: SrcOption = None,
    mlp: Annotated[
        int | None,
        typer.Option(help="Instead of a head, explain the MLP of this layer. Default: none; give --head or --mlp."),
    ] = None,
    pos: Annotated[
        str, typer.Option(help="Token at which the MLP writes: a position (-1: the last) or its text.")
    ] = "-1",
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="With --mlp: the answer along whose logit the write is split; repeatable. Needed with --mlp; default: "
            "none.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="With --mlp: the other answer, whose logit is subtracted; repeatable. Default: none."),
    ] = None,
    *,
    source: PromptOptions,
    tau: TauOption = "dynamic",
    keys: KeysOption = "all",
    why_not: Annotated[
        bool,
        typer.Option(
            "--why-not", help="Explain what keeps the head from attending to --src, instead of why it attends."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Which signals cause one attention weight? Or: which writers made an MLP write towards an answer?

    Of a head, finds the fewest (writer, channel) pairs, on the dest side and on the src side, whose removal takes the
    weight below tau, and shows what each is worth: in the order of removal, and alone. Of an MLP (--mlp, --for), splits
    what it writes along the answer's logit over the writers of its input, exactly.

    Examples:

        keyhole explain "When Mary and John went to the store, John gave a drink to" --head 3.6 --src gave

        keyhole explain "When Mary and John went to the store, John gave a drink to" --head 1.6 --src store --why-not

        keyhole explain "When Mary and John went to the store, John gave a drink to" --mlp 3 --for Mary --against John
    """
    if (head is None) == (mlp is None):
        raise KeyholeError("name one head (--head 3.6) or one MLP (--mlp 3) to explain.")
    of_heads = src is not None or why_not or (dest, tau, keys) != ("-1", "dynamic", "all")
    if (mlp is not None and of_heads) or (head is not None and (answer or against or pos != "-1")):
        raise KeyholeError(
            "--dest, --src, --tau, --keys and --why-not belong to --head, --pos, --for and --against to --mlp: leave "
            "the others out."
        )
    run = source.run(prompt)
    if mlp is not None:
        _explain_mlp(run, mlp, pos, answer, against, json=json)
        return
    where: Any = (read_head(str(head)), read_place(run, dest), read_place(run, src))
    from keyhole.tracing.why import explain as explain_firing

    with show.progress("Searching"):
        firing = explain_firing(run, *where, tau=read_tau(tau), keys=keys, why_not=why_not)
    if json:
        show.as_json(firing.record())
    else:
        show.plain(str(firing))


def _explain_mlp(
    run: Run, layer: int, pos: str, answer: list[str] | None, against: list[str] | None, *, json: bool
) -> None:
    if not answer:
        raise KeyholeError("say for which answer the MLP's write is explained: --for Mary, perhaps --against John.")
    from keyhole.intervene.cuts import remove_causes
    from keyhole.intervene.removal import Metric
    from keyhole.tracing.answers import token_ids

    place = read_place(run, pos)
    assert place is not None
    at = run.position(place)
    right, wrong = read_answers(answer), read_answers(against) or None
    write = run.explain_mlp(layer, at, run.toward(right, wrong, end=at))
    metric = Metric(at, tuple(token_ids(run, right, at)), tuple(token_ids(run, wrong, at)))
    removed = remove_causes(write, metric)
    if json:
        show.as_json({**write.record(), "removed": asdict(removed)})
        return
    show.plain(str(write))
    show.plain(f"  {removed}")


@from_records(start=read_starts)
def trace(
    prompt: PromptArgument = None,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="The answer that is traced, one token or several, or a token id such as id:230; repeatable. Default: "
            "the likeliest next token."
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="The other answer, as --target takes it: what speaks for the one against the other is traced; "
            "repeatable. Default: none."
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Trace the likeliest tokens that together have this probability, between 0 and 1. Default: off."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Trace this many likeliest tokens together. Default: off.")] = None,
    source: PromptOptions,
    settings: TraceSettings,
    mlps: Through,
    svt: SvtSettings,
    start: list[str] | None = None,
    measuring: Measuring,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            help="File to write the circuit to: .json, .html, .svg, .pdf, .png, .graphml, .mib or .neuronpedia.json; "
            "repeatable. Default: none."
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many levels of the tree are printed. Default: as many as fit 60 lines, at most 4."
        ),
    ] = None,
    story: Annotated[
        bool, typer.Option("--story", help="Print the main paths from tokens to the answer instead of the tree.")
    ] = False,
    long: Annotated[
        bool,
        typer.Option("--long", help="With --story: name every head and MLP of a step, where it otherwise says +8."),
    ] = False,
    names: Annotated[
        Path | None,
        typer.Option(
            help="File of names of signals (`keyhole name`); names that passed their tests are shown at edges. "
            "Default: none."
        ),
    ] = None,
    all_names: Annotated[
        bool, typer.Option("--all-names", help="With --names: show names that did not pass, too.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Which circuit is behind an answer?

    Without a target the likeliest next token is traced. A target of several tokens is followed and traced as one
    answer; against another one, both are shown, and the circuit is that of the tokens where they part. The last line
    says how much of the answer the circuit carries by itself, against a baseline (--like, --counterfactual, --text).
    Effects (--effects) say what the answer loses without each part; a circuit that suffices (--sufficient) is small
    enough to be read. A story (--story) says of every step what it is worth by the circuit's accounts, and what the
    answer loses without it. Names (--names) stand in the tree, the story, the page and Neuronpedia's graph
    (mary.neuronpedia.json, for neuronpedia.org and circuit-tracer); other files stay without.

    Examples:

        keyhole trace "When Mary and John went to the store, John gave a drink to" --target Mary --out mary.html

        keyhole trace "When Mary and John went to the store, John gave a drink to" --target Mary --against John

        keyhole trace "When Mary and John went to the store, John gave a drink to" --through mlps --story

        keyhole trace "When Mary and John went to the store, John gave a drink to" --method svt --start 3.1:-1:gave

        keyhole trace "When Mary and John went to the store, John gave a drink to" --like ioi.jsonl --effects
    """
    from keyhole.circuits.files import SUFFIXES, save

    for path in out or []:
        require_file(path, SUFFIXES)
    if story and (settings.through, settings.method) != ("mlps", "accpp"):
        raise KeyholeError("circuits of heads alone have no story: --story needs --through mlps (and --method accpp).")
    if long and not story:
        raise KeyholeError("--long is of a story: add --story.")
    by, further = with_svt(settings, svt), mlps != Through()
    measuring.require(story=story, tracing=further or not settings.as_usual())
    baseline = measuring.options()
    known = names_of_edges.read(names, all_names, json=json)
    run = source.run(prompt)
    if known is not None:
        names_of_edges.require(known, run)
    for place in start or []:
        read_start(place, run)  # refuses a number that is also the text of a token
    targets, others = read_answers(target), read_answers(against)
    if further and (settings.through == "heads" or settings.method == "svt"):
        raise KeyholeError(
            "--cover, --eps, --no-values and --constants are of circuits that go through MLPs: leave them out."
        )
    wanted, both = _asked(targets, top_p, top_k), None
    if measuring.sufficient:
        circuit = search(run, wanted, others, measuring, baseline)
    else:
        by = replace(by, through=mlps) if further else by
        with show.progress_bar("Tracing") as progress:
            circuit = run.trace(wanted, against=others or None, settings=by, progress=progress)
            if others and _several(run, wanted, others):
                both = run.trace_both(wanted, others, settings=replace(by, metric=None), progress=progress)
        circuit = measure(circuit, measuring, baseline)
    prompt_text.doubt(circuit)
    named = None if known is None else names_of_edges.edges(circuit, known, all_names)
    paths = prompt_text.story(circuit, baseline, json=json, names=named, long=long) if story else None
    if paths is None:
        prompt_text.circuit(circuit, json=json, depth=depth, names=named)
    if not json:
        if both is not None:
            show.report(both.report())
        prompt_text.likeliest(circuit.run or run, circuit.parameters.predicted[0][0])
    write_each(out or [], lambda path: save(circuit, path, names=named, story=paths), json=json)


def _several(run: Run, target: Target, against: list[str | int]) -> bool:
    """Is one of two answers several tokens, so that they stand in different texts?"""
    from keyhole.tracing.answers import continuation_of

    return any(continuation_of(run, answer, len(run) - 1) is not None for answer in (target, against))


def _asked(targets: list[str | int], top_p: float | None, top_k: int | None) -> Target:
    """What is traced: named tokens, the likeliest ones, or nothing said."""
    from keyhole.tracing.answers import Likeliest

    if sum([bool(targets), top_p is not None, top_k is not None]) > 1:
        raise KeyholeError("say what to trace with exactly one of: --target, --top-p, --top-k.")
    return targets or (Likeliest(top_k, top_p) if top_p is not None or top_k is not None else None)
