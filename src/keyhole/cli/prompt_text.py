"""How do the firings of a prompt, one split and a circuit look, in a terminal and as JSON?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from keyhole import show
from keyhole.brief import head_name, model_label
from keyhole.report.report import Report, Section, Table

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit, Edge
    from keyhole.faithfulness.routes import Story
    from keyhole.models.run import Run
    from keyhole.qk.channels import Channels
    from keyhole.qk.controls import RotationControl
    from keyhole.qk.firings import Site

_HARDLY = 0.01  # an answer that is less likely is hardly given
_TIMES = 2.0  # an answer that is less often likelier than the other is hardly preferred
_SHORT = 6  # tokens: with so few, even attention is near tau
_LINES, _DEEP = 60, 4  # of a tree, unless a depth is asked for


# -- firings and channels --------------------------------------------------------------------------------------------


def heads_record(run: Run, sites: Sequence[Site], splits: Sequence[Channels]) -> dict[str, Any]:
    """Firings as plain data: all of them, and channels for those that were split."""
    return {
        **_run_record(run),
        "firings": [{**asdict(site), "times_uniform": site.times_uniform} for site in sites],
        "split": [split.record() for split in splits],
    }


def heads_report(run: Run, splits: Sequence[Channels], *, firings: int, collapsed: int, mark: bool) -> Report:
    """Firings as a table, with the channels that carry each."""
    from keyhole.models.tokens import token_label, tokens_line

    columns = ("head", "dest", "src", ">weight", ">x unif.", ">S(v)", ">N", "channels: share", ">error")
    rows = [
        (
            head_name((split.layer, split.head)),
            token_label(run.tokens, split.dest),
            token_label(run.tokens, split.src) + (" sink" if mark and split.src == 0 < split.dest else ""),
            split.attention,
            f"{split.attention * split.visible:.1f}",
            split.sparsity,
            split.n_recon(),
            _carriers(split),
            f"{split.error:.0e}",
        )
        for split in splits
    ]
    notes = [f"{len(splits)} of {firings} firings shown"]
    if collapsed:
        notes.append(f"{collapsed} on the first token are only counted (--first-token keep lists them)")
    text = (
        f"{'; '.join(notes)}.\n"
        "x unif.: weight x visible keys. S(v), N: how sparse, how many channels make the relative attention.\n"
        "Look into one: keyhole channels PROMPT --head L.H --dest D --src S"
    )
    sections = [Section("Heads that fire", [Table(columns, rows), text])]
    return Report(f"Firings: {model_label(run.model.name)}", tokens_line(run.tokens), sections)


def _carriers(split: Channels) -> str:
    """The strongest channels and their shares."""
    if split.relative_attention <= 0:
        return "-"
    return " ".join(f"{k}:{100 * share:.0f}%" for k, share in split.strongest())


def channels_record(run: Run, split: Channels, controls: Sequence[RotationControl]) -> dict[str, Any]:
    """One split as plain data."""
    from keyhole.qk.omega import blocks

    record = {**_run_record(run), **split.record()}
    record["blocks"] = blocks(split.sigma).tolist()
    record["controls"] = {c.kind: {"mean": c.mean_rotated, "draws": list(c.rotated)} for c in controls}
    return record


def _run_record(run: Run) -> dict[str, Any]:
    return {"model": run.model.name, "bos": run.bos, "token_ids": list(run.token_ids), "tokens": list(run.tokens)}


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
