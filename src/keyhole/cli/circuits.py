"""Commands that explain: one firing, the circuit behind an answer, and whether it holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.options import (
    BosOption,
    DeviceOption,
    DtypeOption,
    IdsOption,
    JsonOption,
    ModelOption,
    PromptArgument,
    RevisionOption,
    load_model,
    read_head,
    read_place,
    run_prompt,
)
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.tracing.firing import Tau

TauOption = Annotated[str, typer.Option(help="dynamic (2.5 / visible keys) or a weight between 0 and 1.")]
KeysOption = Annotated[str, typer.Option(help="What a src-side removal touches: all keys, or the source alone.")]


def explain(
    prompt: PromptArgument = None,
    head: Annotated[str, typer.Option(help="Layer and head, such as 3.6.")] = ...,  # type: ignore[assignment]
    dest: Annotated[str, typer.Option(help="The attending token: a position or its text.")] = "-1",
    src: Annotated[str, typer.Option(help="The attended token: a position or its text.")] = ...,  # type: ignore
    model: ModelOption = None,
    tau: TauOption = "dynamic",
    keys: KeysOption = "all",
    token_ids: IdsOption = None,
    bos: BosOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Which signals cause one attention weight?

    Finds the fewest (writer, channel) pairs, on the dest side and on the src side, whose removal takes the weight below
    tau, and tells what each is worth: in the order of removal, and alone.

    Examples:

        keyhole explain "When Mary and John went to the store, John gave a drink to" --head 3.6 --src gave

        keyhole explain "The war lasted from the year 1745 to the year 17" --head 2.3 --src 10 --tau 0.2
    """
    run = run_prompt(prompt, token_ids, bos, where=(model, revision, dtype, device))
    where: Any = (read_head(head), read_place(run, dest), read_place(run, src))
    from keyhole.tracing.firing import explain as explain_firing

    with show.progress("Searching"):
        firing = explain_firing(run, *where, tau=read_tau(tau), keys=_keys(keys))  # type: ignore[arg-type]
    if json:
        fields = [name for name in firing.__dataclass_fields__ if name != "run"]
        record = {name: getattr(firing, name) for name in fields}
        show.as_json({**record, "sides": [asdict(side) for side in firing.sides], "tokens": list(run.tokens)})
    else:
        show.plain(str(firing))


def trace(
    prompt: PromptArgument = None,
    target: Annotated[list[str] | None, typer.Option(help="The answer; repeat for several.")] = None,
    against: Annotated[list[str] | None, typer.Option(help="With --seeds linear: the other answer.")] = None,
    target_id: Annotated[list[int] | None, typer.Option(help="The answer as a token id.")] = None,
    against_id: Annotated[list[int] | None, typer.Option(help="The other answer as a token id.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Trace the likeliest tokens that make up this share.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Trace the k likeliest tokens.")] = None,
    model: ModelOption = None,
    method: Annotated[str, typer.Option(help="accpp, or svt (the 2024 method).")] = "accpp",
    seeds: Annotated[str | None, typer.Option(help="prob, or linear (default when --against is given).")] = None,
    tau: TauOption = "dynamic",
    seed_tau: Annotated[float, typer.Option(help="Share of the answer's log-likelihood that seeds must carry.")] = 0.8,
    keys: KeysOption = "all",
    sinks: Annotated[str, typer.Option(help="Firings on the first token: keep, mark or collapse.")] = "keep",
    out: Annotated[list[Path] | None, typer.Option(help="Write .json, .graphml, .html or .mib; repeatable.")] = None,
    depth: Annotated[int, typer.Option(min=1, help="Levels of the tree to print.")] = 4,
    token_ids: IdsOption = None,
    bos: BosOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Which circuit is behind an answer?

    Without a target the likeliest next token is traced.

    Examples:

        keyhole trace "When Mary and John went to the store, John gave a drink to" --target Mary --out mary.html

        keyhole trace "When Mary and John went to the store, John gave a drink to" --target Mary --against John

        keyhole trace --model path/to/model --token-ids 8,10,84 --target-id 7 --json
    """
    run = run_prompt(prompt, token_ids, bos, where=(model, revision, dtype, device))
    targets: list[str | int] = [*(target or []), *(target_id or [])]
    others: list[str | int] = [*(against or []), *(against_id or [])]
    if not targets and top_p is None and top_k is None:
        top_k = 1
    options: dict[str, Any] = {"top_p": top_p, "top_k": top_k, "seeds": seeds or ("linear" if others else "prob")}
    options |= {"against": others or None}
    with show.progress_bar("Tracing") as progress:
        if method == "accpp":
            options |= {"tau": read_tau(tau), "seed_tau": seed_tau, "keys": _keys(keys), "sinks": _sinks(sinks)}
            options["progress"] = progress
        circuit = run.trace(targets or None, method=method, **options)  # type: ignore[arg-type]
    from keyhole.circuits.files import save

    for path in out or []:
        save(circuit, path)
    _show_circuit(circuit, json=json, depth=depth, written=out or [])


def verify(
    file: Annotated[Path, typer.Argument(help="A circuit file (.json).")],
    model: ModelOption = None,
    mode: Annotated[str, typer.Option(help="exact, local or global.")] = "exact",
    draws: Annotated[int, typer.Option(min=0, help="Random controls per removal.")] = 3,
    sides_only: Annotated[bool, typer.Option("--sides-only", help="Whole sides of firings, not single edges.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many removals to show.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the controls.")] = 0,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Does a circuit hold? Removes every signal in the model's own forward pass, beside random controls.

    Exits with 1 if a measured attention weight differs from the predicted one.

    Examples:

        keyhole verify mary.json

        keyhole verify mary.json --mode global --draws 10 --json
    """
    from keyhole.circuits.files import load_circuit
    from keyhole.intervene.report import CELLS, row_cells, summary_lines
    from keyhole.intervene.verify import verify as verify_circuit

    circuit = load_circuit(file)
    loaded = load_model(_model_of(circuit, model), revision, dtype, device)
    with show.progress_bar("Verifying") as progress:
        result = verify_circuit(
            circuit,
            loaded,
            mode=mode,  # type: ignore[arg-type]
            draws=draws,
            edges=not sides_only,
            seed=seed,
            progress=progress,
        )
    if json:
        rows = [{**asdict(row), "drop": row.drop, "control": row.control} for row in result.rows]
        show.as_json({"mode": mode, "agrees": result.agrees, "ratio": result.ratio(), "rows": rows})
    else:
        ranked = sorted(result.rows, key=lambda row: -row.drop)
        show.table(CELLS, [row_cells(circuit, row) for row in ranked[:top]])
        show.plain("\n".join(summary_lines(result)))
    raise typer.Exit(0 if result.agrees else 1)


def read_tau(text: str) -> Tau:
    """--tau: dynamic or a number."""
    if text == "dynamic":
        return "dynamic"
    try:
        return float(text)
    except ValueError as error:
        raise KeyholeError(f"--tau takes dynamic or a number such as 0.2, not {text!r}.") from error


def _keys(text: str) -> str:
    if text not in ("all", "source"):
        raise KeyholeError(f"--keys takes all or source, not {text!r}.")
    return text


def _sinks(text: str) -> str:
    if text not in ("keep", "mark", "collapse"):
        raise KeyholeError(f"--sinks takes keep, mark or collapse, not {text!r}.")
    return text


def _model_of(circuit: Circuit, given: str | None) -> str | None:
    """The model that a circuit names, unless another place to load it from is given."""
    name = str(circuit.model.get("name"))
    return given if given is not None else None if name == "organism" else name


def _show_circuit(circuit: Circuit, *, json: bool, depth: int, written: list[Path]) -> None:
    from keyhole.circuits.files import to_json
    from keyhole.circuits.text import circuit_text

    if json:
        print(to_json(circuit), end="")
        return
    show.plain(circuit_text(circuit, depth=depth))
    for path in written:
        show.plain(f"wrote {path}")
