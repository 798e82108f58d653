"""How do a check, the firings of a prompt, one split and a circuit look, in a terminal and as JSON?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from keyhole import show
from keyhole.brief import model_label

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit, Edge
    from keyhole.faithfulness.routes import Story
    from keyhole.models.run import Run
    from keyhole.qk.channels import Channels
    from keyhole.qk.controls import RotationControl
    from keyhole.qk.firings import Site
    from keyhole.tracing.exactness import Check

_HARDLY = 0.01  # an answer that is less likely is hardly given
_TIMES = 2.0  # an answer that is less often likelier than the other is hardly preferred
_SHORT = 6  # tokens: with so few, even attention is near tau
_LINES, _DEEP = 60, 4  # of a tree, unless a depth is asked for
_BAR, _BESIDE = 24, 32  # width of the longest bar; what the numbers beside it take


# -- check ---------------------------------------------------------------------------------------------------------


def check_record(result: Check) -> dict[str, Any]:
    """A check as plain data."""
    summary = {name: getattr(result, name) for name in ("scores", "residuals", "mlps", "exact")}
    return {**asdict(result), **summary}


def check(result: Check, verbose: bool) -> None:
    """The errors of a check as a table."""
    show.plain(f"{model_label(result.model)}: {result.n_tokens} tokens, {result.dtype}")
    rows = [
        ("attention scores", "singular channels", _judged(result.scores, result)),
        ("residual streams", "writers", _judged(result.residuals, result)),
        ("logits", "writers", _judged(result.logits, result)),
        ("MLP writes", "folded weights", "no facts" if result.mlps is None else _judged(result.mlps, result)),
    ]
    if result.plain_pass is not None:
        rows.append(("logits, captured", "a plain pass", _judged(result.plain_pass, result)))
    show.table(("reconstructed", "from", ">largest error"), rows)
    if verbose:
        _check_layers(result)
    deficient = sum(layer.deficient_heads for layer in result.layers)
    if deficient:
        show.rich(
            f"{deficient} heads have directions that no channel holds (of no weight, or too weak to be told); that "
            "part of a score is shown as rest."
        )
    verdict = "exact" if result.exact else "NOT exact"
    show.rich(
        f"[bold]{verdict}[/bold] within {result.tolerance:.0e} of the largest value (of the head, or of the token).",
        style="green" if result.exact else "red",
    )
    import torch

    from keyhole.models.numbers import rounding_advice

    advice = rounding_advice(getattr(torch, result.dtype))
    if advice is not None and not result.exact:
        show.plain(advice)


def _judged(value: float, result: Check) -> Text:
    return Text(f"{value:.1e}", style="green" if value <= result.tolerance else "bold red")


def _check_layers(result: Check) -> None:
    rows = [
        (
            str(layer.layer),
            "no attention" if layer.scores is None else f"{layer.scores:.1e}",
            "" if layer.values is None else f"{layer.values:.1e}",
            f"{layer.residual:.1e}",
            "" if layer.mlp is None else f"{layer.mlp:.1e}",
        )
        for layer in result.layers
    ]
    show.table(("layer", ">scores from channels", ">values", ">residual after it, from writers", ">MLP"), rows)


# -- heads ---------------------------------------------------------------------------------------------------------


def heads_record(run: Run, sites: Sequence[Site], splits: Sequence[Channels]) -> dict[str, Any]:
    """Firings as plain data: all of them, and channels for those that were split."""
    return {
        **_run_record(run),
        "firings": [{**asdict(site), "times_uniform": site.times_uniform} for site in sites],
        "split": [split.record() for split in splits],
    }


def heads(run: Run, splits: Sequence[Channels], *, firings: int, collapsed: int, mark: bool) -> None:
    """Firings as a table, with the channels that carry each."""
    show.rich(_tokens_line(run))
    columns = ("head", "dest", "src", ">weight", ">x unif.", ">S(v)", ">N", "channels: share", ">error")
    rows = [
        (
            f"{split.layer}.{split.head}",
            _token(run, split.dest),
            _token(run, split.src) + (" sink" if mark and split.src == 0 < split.dest else ""),
            f"{split.attention:.3f}",
            f"{split.attention * split.visible:.1f}",
            f"{split.sparsity:.3f}",
            str(split.n_recon() or "-"),
            _carriers(split),
            f"{split.error:.0e}",
        )
        for split in splits
    ]
    show.table(columns, rows)
    notes = [f"{len(splits)} of {firings} firings shown"]
    if collapsed:
        notes.append(f"{collapsed} on the first token are only counted (--first-token keep lists them)")
    show.rich("; ".join(notes) + ".")
    show.rich(
        "x unif.: weight x visible keys. S(v), N: how sparse, how many channels make the relative attention.\n"
        "Look into one: keyhole channels PROMPT --head L.H --dest D --src S",
        style="dim",
    )


def _carriers(split: Channels) -> str:
    """The strongest channels and their shares."""
    if split.relative_attention <= 0:
        return "-"
    return " ".join(f"{k}:{100 * share:.0f}%" for k, share in split.strongest())


# -- channels ------------------------------------------------------------------------------------------------------


def channels_record(run: Run, split: Channels, controls: Sequence[RotationControl]) -> dict[str, Any]:
    """One split as plain data."""
    from keyhole.qk.omega import blocks

    record = {**_run_record(run), **split.record()}
    record["blocks"] = blocks(split.sigma).tolist()
    record["controls"] = {c.kind: {"mean": c.mean_rotated, "draws": list(c.rotated)} for c in controls}
    return record


def channels(run: Run, split: Channels, controls: Sequence[RotationControl], top: int) -> None:
    """One split as a bar chart: what each channel adds to the relative attention."""
    from keyhole.qk.omega import blocks

    show.rich(_tokens_line(run))
    show.plain(
        f"head {split.layer}.{split.head}  {_token(run, split.dest)} <- {_token(run, split.src)}   "
        f"attention {split.attention:.3f}   score {split.score:.2f}   relative attention {split.relative_attention:.2f}"
    )
    same = blocks(split.sigma).tolist()
    order = split.relative_terms.abs().argsort(descending=True).tolist()
    shown, left = order[:top], order[top:]
    rows = [
        (f"{k}{'~' if same.count(same[k]) > 1 else ''}", f"{float(split.sigma[k]):.2f}", float(split.relative_terms[k]))
        for k in shown
    ]
    if left:
        rows.append((f"{len(left)} more", "", float(split.relative_terms[left].sum())))
    if split.relative_rest:
        rows.append(("rest", "", split.relative_rest))
    longest = max([abs(value) for *_, value in rows] + [1e-30])
    cells = [(name, sigma, f"{value:+.3f}", _bar(value, longest)) for name, sigma, value in rows]
    show.table(("channel", ">sigma", ">term", ""), cells)
    recon = " / ".join(str(split.n_recon(t) or "-") for t in (1.0, 0.99, 0.95))
    rotated = "".join(f"   {c.kind} rotation {c.mean_rotated:.3f}" for c in controls)
    show.rich(f"S(v) [bold]{split.sparsity:.3f}[/bold] of {len(split.sigma)} channels{rotated}")
    show.rich(f"N_recon {recon} (for 100 / 99 / 95 % of the relative attention)   error {split.error:.0e}")
    if any(same.count(same[k]) > 1 for k in shown):
        show.rich("~ shares its singular value with a neighbour: only their plane is determined, not each channel")


def _bar(value: float, longest: float) -> Text:
    """As long as the value's part of the longest one, in what the numbers leave of the width."""
    most = max(4, min(_BAR, (show.width() or 80) - _BESIDE))
    length = max(1, round(most * abs(value) / longest)) if value else 0
    return Text("█" * length, style="blue" if value > 0 else "red")


# -- shared --------------------------------------------------------------------------------------------------------


def _run_record(run: Run) -> dict[str, Any]:
    return {"model": run.model.name, "bos": run.bos, "token_ids": list(run.token_ids), "tokens": list(run.tokens)}


def _token(run: Run, position: int) -> str:
    from keyhole.models.tokens import token_label

    return token_label(run.tokens, position)


def _tokens_line(run: Run) -> Text:
    return Text(" ".join(f"{t}:{token.strip()}" for t, token in enumerate(run.tokens)), style="dim")


# -- circuits ------------------------------------------------------------------------------------------------------


def circuit(traced: Circuit, *, json: bool, depth: int | None, names: Mapping[Edge, str] | None = None) -> None:
    """A circuit as a tree: of a `depth`, or as deep as fits some screens."""
    from keyhole.circuits.files import to_json
    from keyhole.circuits.text import circuit_text

    if json:
        print(to_json(traced), end="")
        return
    for levels in range(depth or _DEEP, 0, -1):
        text = circuit_text(traced, depth=levels, names=names)
        if depth is not None or text.count("\n") < _LINES:
            break
    show.plain(text)
    show.rich(Text(_tree_legend(traced), style="dim"))


def _tree_legend(circuit: Circuit) -> str:
    """What stands at a branch, and where there is more."""
    from keyhole.circuits.records import Sufficient
    from keyhole.circuits.text import weight_label

    parts = [
        f"A branch: {weight_label(circuit)}; dest, src: what a head looks for, and finds, through these channels (ch)"
    ]
    if circuit.measured is not None and circuit.measured.edges:
        parts.append("effect: what the answer loses with it at the baseline")
    if circuit.measured is not None and circuit.measured.edge_shares and not isinstance(circuit.parameters, Sufficient):
        parts.append("share: its part of the answer's gap to the baseline")
    if circuit.influence:
        parts += ["value: what it moves", "in all: over all branches", "[pruned]: too weak to follow (--eps)"]
    return (
        "; ".join([*parts, "(above): shown before"])
        + ". --depth N shows more"
        + (", --story the main paths." if circuit.influence else ".")
    )


def doubt(circuit: Circuit) -> None:
    """Notes, if the model hardly gives the traced answer or prefers it to the other, or the prompt is very short."""
    parameters = circuit.parameters
    likely, other = parameters.likely, sum(parameters.against_probability)
    if parameters.target_probability and likely < _HARDLY:
        show.note(
            f"the model hardly believes this answer (probability {likely:.2g}): the circuit shows what speaks for "
            "it, and more speaks for others."
        )
    elif parameters.against_probability and likely < _TIMES * other:
        show.note(
            f"the model hardly prefers this answer ({likely:.2g}) to the other ({other:.2g}): much speaks for both, "
            "and what little decides may hang on many parts."
        )
    if len(circuit.tokens) <= _SHORT and getattr(parameters, "tau", None) == "dynamic":
        from keyhole.qk.firings import DYNAMIC_SCALE, dynamic_tau

        least = dynamic_tau(len(circuit.tokens))
        show.note(
            f"with {len(circuit.tokens)} tokens a head fires only from {least:.2f} on (tau: {DYNAMIC_SCALE} times even "
            "attention), and few are explained: --tau 0.2 explains more."
        )


def likeliest(run: Run, end: int) -> None:
    """What the model would say next: what could be asked for, or held against it."""
    show.plain(f"likeliest next tokens: {run.next(end=end)}")


def story(
    circuit: Circuit,
    baseline: Mapping[str, Any],
    *,
    json: bool,
    names: Mapping[Edge, str] | None = None,
    long: bool = False,
) -> Story:
    """A circuit's main paths, each step measured; they are handed on, for pages."""
    from keyhole.circuits.text import faithfulness_label
    from keyhole.faithfulness.story import WIDTH, story_text

    with show.progress_bar("Measuring") as progress:
        paths = circuit.story(progress=progress, **baseline)
    if json:
        show.as_json(paths.record())
    else:
        show.plain(story_text(paths, show.width() or WIDTH, names=names, long=long))
        if circuit.measured is not None:
            show.plain(faithfulness_label(circuit))
    return paths
