"""When do the heads of a small language model become sparse? Trains several seeds and measures their snapshots.

`python tools/train_emergence.py train --seeds 0 1 2 --out emergence.json` trains, finds the heads of every role in the
finished model, and writes the rows of all snapshots; `--organism tools/snapshots` measures the organism's too. Each
training is kept beside the rows (emergence-seed-0.safetensors) and read from there when it is there, so that other
prompts or rules for roles can be measured without training again.
`python tools/train_emergence.py show emergence.json --figures folder` prints what they say and draws it.
Training needs torch, transformers and SciPy alone beside Keyhole's source (PYTHONPATH=src).
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import keyhole
from keyhole.lab.checkpoints import snapshot_checkpoints
from keyhole.lab.emergence import Emergence, EmergenceRow, emergence
from keyhole.lab.language import (
    LanguageSettings,
    checkpoints,
    held_out,
    read_trained,
    save_trained,
    snapshot_steps,
    train_language,
)
from keyhole.lab.roles import bystanders, find_roles
from keyhole.models.model import Model
from keyhole.tasks import Example, ioi

_ORGANISM_STEPS = 10_000


def measured(
    name: str, models: Iterator[tuple[int, Model]], finished: Model, prompts: Sequence[Example], options: Any
) -> dict[str, Any]:
    """Rows of the heads with a role and of their bystanders, at every checkpoint; none where no head has a role."""
    played = find_roles(finished, prompts, heads=options.players, threshold=options.threshold, required=False)
    found: dict[str, Any] = {
        "source": name,
        "roles": [{**asdict(p.place), "attention": p.attention} for p in played],
        "rows": [],
        "bystanders": [],
    }
    if not played:
        print(f"{name}: no head plays a role, so none is followed", flush=True)
        return found
    seed = int(name.removeprefix("seed ")) if name.startswith("seed ") else 0
    busy, idle = [p.place for p in played], bystanders(finished, played, seed=seed)
    both = emergence(models, [*busy, *idle], prompts, draws=options.draws, seed=seed, source=name)
    heads = {(place.role, place.head) for place in busy}
    for step, rows in zip(both.steps, both.rows, strict=True):
        for row in rows:
            group = "rows" if (row.role, row.head) in heads else "bystanders"
            values = {name: None if value != value else value for name, value in asdict(row).items()}  # JSON has no NaN
            found[group].append({"step": step, **values})
    return found


def in_both_orders(n: int) -> list[Example]:
    """Held-out prompts: n of induction, and n of indirect objects in each order of names, of which roles are asked."""
    abba, baba = (ioi(n, seed, order=order, held_out=True) for seed, order in ((11, "ABBA"), (12, "BABA")))
    return [*abba, *baba, *held_out(n, seed=11)["induction"]]


def one_seed(settings: LanguageSettings, prompts: Sequence[Example], options: Any) -> dict[str, Any]:
    """Train, measure, and say how it went."""
    began = time.monotonic()

    def progress(step: int, steps: int) -> None:
        if step % 500 == 0:
            print(f"seed {settings.seed}: step {step} of {steps}, {time.monotonic() - began:.0f} s", flush=True)

    at = snapshot_steps(settings.steps, options.snapshots, options.first)
    path = options.out.with_name(f"{options.out.stem}-seed-{settings.seed}.safetensors")
    if not path.is_file():
        save_trained(train_language(settings, at=at, device=options.device, progress=progress), path)
    trained = read_trained(settings, path)
    if tuple(one.step for one in trained.snapshots) != at:
        raise SystemExit(f"{path} has other snapshots than those asked for: remove it to train again.")
    seconds = time.monotonic() - began
    print(f"seed {settings.seed}: {dict(trained.accuracy)} after {seconds:.0f} s, kept in {path}", flush=True)
    *_, (_, finished) = checkpoints(trained)
    found = measured(f"seed {settings.seed}", checkpoints(trained), finished, prompts, options)
    curve = [{"step": s.step, **s.accuracy} for s in trained.snapshots]
    thinned = [round(sum(part) / len(part), 4) for part in _chunks(trained.losses, 50)]
    return found | {"settings": asdict(settings), "seconds": seconds, "accuracy": curve, "loss_per_50_steps": thinned}


def organism(folder: Path, prompts: Sequence[Example], options: Any) -> dict[str, Any]:
    """The same for the snapshots of the organism's training; the finished organism is the last."""
    finished = keyhole.load()
    models = chain(snapshot_checkpoints(folder, finished), [(_ORGANISM_STEPS, finished)])
    return measured("organism", models, finished, prompts, options)


def _chunks(values: Sequence[float], size: int) -> list[Sequence[float]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def read(training: dict[str, Any], group: str = "rows") -> Emergence:
    """One training of the JSON file as an Emergence."""
    by_step: dict[int, list[EmergenceRow]] = {}
    for row in training[group]:
        values = {name: math.nan if value is None else value for name, value in row.items() if name != "step"}
        by_step.setdefault(row["step"], []).append(EmergenceRow(**values | {"head": tuple(row["head"])}))
    return Emergence(tuple(by_step), tuple(tuple(rows) for rows in by_step.values()))


def show(path: Path, figures: Path | None) -> None:
    """Tables of means with intervals, changes from the first checkpoint to the last, and figures."""
    from keyhole.lab.training_curves import together  # SciPy and Matplotlib are not needed for training

    trainings = json.loads(path.read_text())["trainings"]
    seeds = [t for t in trainings if t["source"] != "organism" and t["rows"]]
    sets = {t["source"]: [t] for t in trainings if t["source"] == "organism" and t["rows"]}
    sets |= {"seeds": seeds} if seeds else {}
    for training in trainings:
        print(training["source"], [(r["role"], r["head"], round(r["attention"], 2)) for r in training["roles"]])
        for line in training.get("accuracy", []):
            print("   ", line)
    for name, members in sets.items():
        for group in ("rows", "bystanders"):
            emerged = together([read(training, group) for training in members])
            _table(f"{name}, {'heads with a role' if group == 'rows' else 'bystanders'}", emerged, len(members))
            if figures is not None and group == "rows":
                _draw(emerged, name, figures)


def _table(title: str, emerged: Emergence, members: int) -> None:
    from keyhole.lab.training_curves import MEASURES, change, curve

    for over in ("places", "sources") if members > 1 else ("places",):
        print(f"\n{title}, over {over}: mean [95 % interval]")
        for name in MEASURES:
            points = curve(emerged, name, over=over)
            cells = [f"{step}: {_text(point)}" for step, point in zip(emerged.steps, points, strict=True)]
            print(f"  {name} (n {points[-1].count}, rows without: {[point.dropped for point in points]})")
            print(f"    {'; '.join(cells)}")
        for name, against in (
            *((n, None) for n in ("sparsity", "ambient", "refactor", "n_recon")),
            *(("sparsity", control) for control in ("ambient", "refactor")),
        ):
            moved = change(emerged, name, against=against, over=over)
            beyond = f" beyond {against}" if against else ""
            print(f"  change of {name}{beyond}: {_text(moved)}")


def _text(point: Any) -> str:
    return f"{point.mean:.3f} [{point.low:.3f}, {point.high:.3f}]"


def _draw(emerged: Emergence, name: str, folder: Path) -> None:
    from keyhole.figures.style import save
    from keyhole.lab.training_curves import emergence_figure

    folder.mkdir(parents=True, exist_ok=True)
    whose = "the organism" if name == "organism" else "small language models"
    title = f"Task heads of {whose} over training"
    save(emergence_figure(emerged, title=title), folder / f"emergence-{name}.png")
    save(emergence_figure(emerged, title=title, by_role=True, tolerant=True), folder / f"emergence-{name}-roles.png")


def main() -> None:
    """Read the command line; train and measure, or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    plain = [field for field in fields(LanguageSettings) if field.name not in ("seed", "length")]
    for field in plain:
        training.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    training.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    training.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    training.add_argument("--snapshots", type=int, default=14)
    training.add_argument("--first", type=int, default=20, help="step of the first snapshot after 0")
    training.add_argument("--prompts", type=int, default=16, help="of each order of names, and of induction")
    training.add_argument("--draws", type=int, default=20)
    training.add_argument("--players", type=int, default=3, help="most heads per role")
    training.add_argument("--threshold", type=float, default=0.3, help="least attention of a head with a role")
    training.add_argument("--organism", type=Path, help="folder of the organism's snapshots, to measure them too")
    training.add_argument("--out", type=Path, required=True)
    showing = commands.add_parser("show")
    showing.add_argument("file", type=Path)
    showing.add_argument("--figures", type=Path)
    options = parser.parse_args()
    if options.command == "show":
        show(options.file, options.figures)
        return
    chosen = {field.name: getattr(options, field.name) for field in plain}
    prompts = in_both_orders(options.prompts)
    trainings = [] if options.organism is None else [organism(options.organism, prompts, options)]
    for seed in options.seeds:
        trainings.append(one_seed(LanguageSettings(**chosen, seed=seed), prompts, options))
        options.out.write_text(json.dumps({"trainings": trainings}) + "\n")  # after each, lest a late fault lose all
    options.out.write_text(json.dumps({"trainings": trainings}) + "\n")


if __name__ == "__main__":
    main()
