"""How do results look in a terminal, and as JSON? Labels are made here and nowhere else."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:  # the terminal's side is imported for help too, and torch is not
    from keyhole.exactness import Check
    from keyhole.models.run import Run
    from keyhole.qk.channels import Channels
    from keyhole.qk.controls import RotationControl
    from keyhole.qk.firings import Site

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)
_BAR = 24  # width of the longest bar


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner with the time on standard error, gone when the work is done; silent when not in a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told (done, total), on standard error; silent when not in a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def plain(text: str) -> None:
    """Text on standard output, as it is."""
    _out.print(Text(text), soft_wrap=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows on standard output; a column whose name begins with > is aligned right."""
    made = Table(*(_column(name) for name in columns), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    _out.print(made)


def tell_notes() -> None:
    """From now on, what the library notes goes to standard error, a line each."""
    logger, handler = logging.getLogger("keyhole"), logging.Handler(logging.INFO)
    handler.emit = lambda record: _err.print(Text(f"note: {record.getMessage()}"), soft_wrap=True)  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def error(message: str) -> None:
    """One line on standard error."""
    _err.print(Text("error: ", style="bold red") + Text(message), soft_wrap=True)


def as_json(record: dict[str, Any]) -> None:
    """A record on standard output, as JSON (NaN and infinity as null)."""
    print(json_text(record))


def json_text(record: dict[str, Any]) -> str:
    """A record as JSON (NaN and infinity as null)."""
    return json.dumps(_finite(record), ensure_ascii=False, indent=2)


# -- check ---------------------------------------------------------------------------------------------------------


def check_record(result: Check) -> dict[str, Any]:
    """A check as plain data."""
    summary = {"scores": result.scores, "residuals": result.residuals, "exact": result.exact}
    return {**asdict(result), **summary}


def check(result: Check, verbose: bool) -> None:
    """The errors of a check as a table."""
    made = Table(title=f"{result.model}: {result.n_tokens} tokens, {result.dtype}", title_justify="left")
    made.add_column("what is rebuilt")
    made.add_column("from")
    made.add_column("largest error", justify="right")
    rows = [
        ("attention scores", "singular channels", result.scores),
        ("residual streams", "writers", result.residuals),
        ("logits", "writers", result.logits),
    ]
    if result.own is not None:
        rows.append(("logits, captured", "a plain pass", result.own))
    for what, source, value in rows:
        made.add_row(what, source, Text(f"{value:.1e}", style="green" if value <= result.tolerance else "bold red"))
    _out.print(made)
    if verbose:
        _out.print(_check_layers(result))
    deficient = sum(layer.deficient_heads for layer in result.layers)
    if deficient:
        _out.print(
            f"{deficient} heads have directions that no channel holds (of no weight, or too weak to be told); that "
            "part of a score is shown as rest."
        )
    verdict = "exact" if result.exact else "NOT exact"
    _out.print(
        f"[bold]{verdict}[/bold] within {result.tolerance:.0e} of the largest value (of the head, or of the token).",
        style="green" if result.exact else "red",
    )


def _check_layers(result: Check) -> Table:
    made = Table("layer", "scores from channels", "values", "residual after it, from writers")
    for layer in result.layers:
        scores = "no attention" if layer.scores is None else f"{layer.scores:.1e}"
        values = "" if layer.values is None else f"{layer.values:.1e}"
        made.add_row(str(layer.layer), scores, values, f"{layer.residual:.1e}")
    return made


# -- heads ---------------------------------------------------------------------------------------------------------


def heads_record(run: Run, sites: Sequence[Site], splits: Sequence[Channels]) -> dict[str, Any]:
    """Firings as plain data: all of them, and channels for those that were split."""
    return {
        **_run_record(run),
        "firings": [{**asdict(site), "times_uniform": site.times_uniform} for site in sites],
        "split": [_split_record(split) for split in splits],
    }


def heads(run: Run, splits: Sequence[Channels], *, found: int, hidden: int) -> None:
    """Firings as a table, with the channels that carry each."""
    _out.print(_tokens_line(run))
    columns = ("head", "dest", "src", ">weight", ">x unif.", ">S(v)", ">N", "channels: share", ">error")
    rows = [
        (
            f"{split.layer}.{split.head}",
            _token(run, split.dest),
            _token(run, split.src),
            f"{split.attention:.3f}",
            f"{split.attention * split.visible:.1f}",
            f"{split.sparsity:.3f}",
            str(split.n_recon() or "-"),
            _carriers(split),
            f"{split.error:.0e}",
        )
        for split in splits
    ]
    table(columns, rows)
    notes = [f"{len(splits)} of {found} firings shown"]
    if hidden:
        notes.append(f"{hidden} to the first token hidden (--sinks shows them)")
    _out.print("; ".join(notes) + ".")
    _out.print(
        "x unif.: weight x visible keys. S(v), N: how sparse, how many channels make the relative attention.\n"
        "Look into one: keyhole channels PROMPT --head L.H --dest D --src S",
        style="dim",
    )


def _column(name: str) -> Column:
    justify: Literal["right", "left"] = "right" if name.startswith(">") else "left"
    name = name.removeprefix(">")
    narrowest = max(5, len(name)) if justify == "right" else None  # words may be cut short, numbers may not
    return Column(name, justify=justify, no_wrap=True, min_width=narrowest)


def _carriers(split: Channels, n: int = 3) -> str:
    """The strongest channels and their shares."""
    if split.relative_attention <= 0:
        return "-"
    values, order = split.relative_terms.sort(descending=True)
    pairs = zip(order.tolist()[:n], values.tolist()[:n], strict=True)
    return " ".join(f"{k}:{100 * value / split.relative_attention:.0f}%" for k, value in pairs if value > 0)


# -- channels ------------------------------------------------------------------------------------------------------


def channels_record(run: Run, split: Channels, controls: Sequence[RotationControl]) -> dict[str, Any]:
    """One split as plain data."""
    from keyhole.qk.omega import blocks

    record = {**_run_record(run), **_split_record(split)}
    record["blocks"] = blocks(split.sigma).tolist()
    record["controls"] = {c.kind: {"mean": c.mean_rotated, "draws": list(c.rotated)} for c in controls}
    return record


def channels(run: Run, split: Channels, controls: Sequence[RotationControl], top: int) -> None:
    """One split as a bar chart: what each channel adds to the relative attention."""
    from keyhole.qk.omega import blocks

    _out.print(_tokens_line(run))
    _out.print(
        f"head [bold]{split.layer}.{split.head}[/bold]  {escape(_token(run, split.dest))} <- "
        f"{escape(_token(run, split.src))}   "
        f"attention [bold]{split.attention:.3f}[/bold]   score {split.score:.2f}   "
        f"relative attention {split.relative_attention:.2f}"
    )
    order = split.relative_terms.abs().argsort(descending=True).tolist()
    shown, left = order[:top], order[top:]
    longest = max(float(split.relative_terms.abs().max()), 1e-30)
    same = blocks(split.sigma).tolist()
    made = Table(Column("channel", justify="right"), Column("sigma", justify="right"), "term", "", box=None)
    for k in shown:
        value = float(split.relative_terms[k])
        twin = "~" if same.count(same[k]) > 1 else " "
        made.add_row(f"{k}{twin}", f"{float(split.sigma[k]):.2f}", f"{value:+.3f}", _bar(value, longest))
    if left:
        rest = float(split.relative_terms[left].sum())
        made.add_row(f"{len(left)} more", "", f"{rest:+.3f}", _bar(rest, longest))
    if split.relative_rest:
        made.add_row("rest", "", f"{split.relative_rest:+.3f}", _bar(split.relative_rest, longest))
    _out.print(made)
    recon = " / ".join(str(split.n_recon(t) or "-") for t in (1.0, 0.99, 0.95))
    rotated = "".join(f"   {c.kind} rotation {c.mean_rotated:.3f}" for c in controls)
    _out.print(f"S(v) [bold]{split.sparsity:.3f}[/bold] of {len(split.sigma)} channels{rotated}")
    _out.print(f"N_recon {recon} (for 100 / 99 / 95 % of the relative attention)   error {split.error:.0e}")
    if any(same.count(same[k]) > 1 for k in shown):
        _out.print("~ shares its singular value with a neighbour: only their plane is determined, not each channel")


def _bar(value: float, longest: float) -> Text:
    width = max(1, round(_BAR * abs(value) / longest)) if value else 0
    return Text("█" * min(width, 2 * _BAR), style="blue" if value > 0 else "red")


# -- shared --------------------------------------------------------------------------------------------------------


def _run_record(run: Run) -> dict[str, Any]:
    return {"model": run.model.name, "bos": run.bos, "token_ids": list(run.token_ids), "tokens": list(run.tokens)}


def _split_record(split: Channels) -> dict[str, Any]:
    record = {name: getattr(split, name) for name in split.__dataclass_fields__}
    record.update(sparsity=split.sparsity, n_recon=split.n_recon(), n_recon_99=split.n_recon(0.99))
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in record.items()}


def _token(run: Run, position: int) -> str:
    return f"{position}:{run.tokens[position].strip() or repr(run.tokens[position])}"


def _tokens_line(run: Run) -> Text:
    return Text(" ".join(f"{t}:{token.strip()}" for t, token in enumerate(run.tokens)), style="dim")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
