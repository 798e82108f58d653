"""Commands that find features without labels, and how what was found is written.

What --features means: a file of directions that `keyhole name` and `keyhole where` read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.brief import Head, model_label
from keyhole.cli.from_record import from_records
from keyhole.cli.options import (
    BosOption,
    Frame,
    JsonOption,
    ModelOptions,
    Nonlinearity,
    read_head,
)
from keyhole.errors import KeyholeError
from keyhole.files import is_file, require_file
from keyhole.strict import read_text

if TYPE_CHECKING:
    from keyhole.features.discovery.all_heads import Survey
    from keyhole.features.discovery.features import MatchedSubspace
    from keyhole.features.discovery.one_head import HeadFeatures
    from keyhole.models.model import Model
    from keyhole.models.tokens import Prompt
    from keyhole.naming.subjects.operands import FeaturesFound

FeaturesOption = Annotated[
    Path | None,
    typer.Option(help="File (.json) to write the features to, for `keyhole name` and `keyhole where`. Default: none."),
]


def check_features(path: Path | None) -> None:
    """Refuse at once a place where nothing can be written."""
    if path is not None:
        require_file(path, (".json",))


def require_directions(model: Model, head: Head, frame: Frame) -> None:
    """Refuse a frame whose features turn with positions, before they are found."""
    from keyhole.naming.subjects.kinds import require_fixed

    require_fixed(model, head, frame, "a feature")


def write_features(model: Model, features: FeaturesFound, path: Path | None, *, quiet: bool) -> None:
    """After the answer, which a full disk must not cost."""
    if path is None:
        return
    from keyhole.naming.subjects.operands import feature_subjects, save_subjects

    subjects = feature_subjects(model, features)
    if not subjects:
        show.note(f"no feature has a dimension, so that {path} was not written")
        return
    save_subjects(subjects, model, path)
    if not quiet:
        show.plain(f"wrote {path}")


# The command that finds query-key features without labels.

PASSAGE = 96  # tokens
SURVEY = ("head", ">queries", ">rank", ">agreement", ">gap", ">in subspace", ">mean")
SUBSPACES = ("features", ">rank", ">share", ">dependence", ">p")
FEATURES = ("", ">share", ">corr", ">stable", "sure", "most telling (query→key, times)")


@from_records()
def discover(
    text: Annotated[
        Path | None,
        typer.Argument(help="A text file with a prompt a line, or a .jsonl file of prompts. Default: English prose."),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Find the features of this head, such as 3.1. Default: a survey of all heads.")
    ] = None,
    *,
    source: ModelOptions,
    prompts: Annotated[int, typer.Option(min=2, help="How many prompts are run at most.")] = 300,
    frame: Annotated[
        Frame,
        typer.Option(
            help="Coordinates of queries and keys: after or before the rotation by position, or relative to each other."
        ),
    ] = "relative",
    centre: Annotated[
        bool, typer.Option("--centre/--no-centre", help="Subtract what the average query prefers, or do not.")
    ] = True,
    first: Annotated[
        bool, typer.Option("--first/--no-first", help="Count attention to the first token, too, or do not.")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option(min=1, help="How many directions are kept. Default: as many as hold 99 % of the energy."),
    ] = None,
    nonlinearity: Annotated[
        Nonlinearity, typer.Option(help="Nonlinearity of ICA: cube suits binary features, tanh is robust to outliers.")
    ] = "cube",
    features: FeaturesOption = None,
    top: Annotated[int, typer.Option(min=1, help="How many heads, or token pairs of a feature, are shown.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of halves, ICA and the choice of text.")] = 0,
    bos: BosOption = None,
    json: JsonOption = False,
) -> None:
    """Which features does a head match on, when nobody says what to look for?

    What a query attends to is contrasted with what it leaves; independent components of the queries and of the
    attended keys are found and paired. Features are fitted on one half of the prompts and scored on the other: a
    feature's share is the part of the score gap between attended and other keys that its own term makes. Features
    that depend on each other, in queries as in keys, are reported as one of several dimensions. Gaussian features come
    out only as a subspace, and more features than dimensions as mixtures; both are warned of.
    Without a file the text is passages of Jane Austen's novels, which `make .cache/prose.txt` fetches; for the
    organism, which knows no other words, text of the kind that it was trained on.

    Examples:

        keyhole discover

        keyhole discover --head 3.1

        keyhole discover --head 3.1 --features features.json

        keyhole discover texts.txt --model SmolLM2.gguf --head 20.6 --nonlinearity tanh
    """
    if features is not None and head is None:
        raise KeyholeError("--features writes those of one head: give --head, such as 3.1.")
    check_features(features)
    from keyhole.features.discovery.all_heads import survey as survey_heads
    from keyhole.features.discovery.keys import View
    from keyhole.features.discovery.one_head import head_features

    loaded = source.load()
    if features is not None and head is not None:
        require_directions(loaded, read_head(head), frame)
    texts = _found(loaded, prompts, seed) if text is None else _lines(text, prompts)
    view = View(frame, skip_first=not first)
    with show.progress_bar("Running prompts") as progress:
        if head is None:
            survey = survey_heads(loaded, texts, view=view, centre=centre, bos=bos, seed=seed, progress=progress)
            _show_survey(survey, top, json=json)
            return
        options: dict[str, Any] = {"centre": centre, "rank": rank, "nonlinearity": nonlinearity, "seed": seed}
        found_here = head_features(
            loaded, texts, read_head(head), view=view, bos=bos, show=top, progress=progress, **options
        )
    _show_features(found_here, json=json)
    write_features(loaded, found_here, features, quiet=json)


def _found(model: Model, n: int, seed: int) -> Sequence[Prompt]:
    """English prose, or for the organism text of its own kind, as long as the model can read it."""
    from keyhole.models.tokens import text_ids
    from keyhole.tasks.corpus import documents, knows_tasks_alone, passages

    most = model.dims.positions or 1 << 30
    if not knows_tasks_alone(model):
        return passages(model, [min(PASSAGE, most)] * n, seed)
    fitting = (text for text in documents(2 * n, seed=seed) if len(text_ids(model, text, special=True)) <= most)
    return list(islice(fitting, n))


def _lines(path: Path, n: int) -> list[str]:
    """The prompts of a file: its lines, or of JSON Lines what each has as its prompt."""
    if not is_file(path):
        raise KeyholeError(f"there is no file {path}: give a text file with a prompt a line.")
    if path.suffix.lower() in (".jsonl", ".json"):  # as prose, its braces and keys would be tokens of the prompts
        from keyhole.tasks.files import read_examples

        return [example.text for example in read_examples(path)][:n]
    lines = read_text(path).splitlines()
    return [line.strip() for line in lines if line.strip()][:n]


def _show_survey(survey: Survey, top: int, *, json: bool) -> None:
    if json:
        heads = [
            {**asdict(h), "U": None, "V": None, "S": h.S.tolist(), "held_out": h.held_out.tolist()}
            for h in survey.heads
        ]
        show.as_json({"model": survey.model, "view": asdict(survey.view), "prompts": survey.prompts, "heads": heads})
        return
    rows = [
        (
            f"{h.layer}.{h.head}",
            str(h.queries),
            f"{h.rank} of {len(h.S)}",
            f"{h.agreement:.2f}",
            f"{h.gap:.2f}",
            f"{h.subspace_share:.2f}",
            f"{h.mean_energy:.2f}",
        )
        for h in survey.ranked[:top]
    ]
    show.plain(
        f"{model_label(survey.model)}: {survey.prompts} prompts, frame {survey.view.frame}; "
        "heads by the gap their subspace holds"
    )
    show.table(SURVEY, rows)
    show.plain(
        "rank: 99 % of the contrast's energy; agreement: directions that come back in the other half\n"
        "gap: score of attended minus other keys; in subspace: the held-out part of it;\n"
        "mean: part of the contrast that all queries prefer."
    )


def _show_features(result: HeadFeatures, *, json: bool) -> None:
    discovery = result.discovery
    if json:
        show.as_json(_features_record(result))
        return
    show.plain(
        f"head {result.data.layer}.{result.data.head}: rank {discovery.rank} of {len(discovery.S)}, "
        f"gap {discovery.gap:.2f} over {discovery.samples[1]} held-out queries"
    )
    rows = []
    for number, (feature, pairs) in enumerate(zip(discovery.features, result.pairs, strict=True)):
        telling = ", ".join(f"{p.query.strip() or '·'}→{p.key.strip() or '·'} {p.count}" for p in pairs[:3])
        steady = min(feature.query.stability, feature.key.stability)
        share = f"{feature.share:.2f} ±{feature.share_error:.2f}"
        rows.append(
            (
                str(number),
                share,
                f"{feature.correlation:.2f}",
                f"{steady:.2f}",
                "yes" if feature.identified else "no",
                telling,
            )
        )
    show.table(FEATURES, rows)
    large = [subspace for subspace in discovery.subspaces if subspace.rank > 1]
    if large:
        show.plain("features of several dimensions, told apart above only up to a rotation:")
        show.table(SUBSPACES, [_subspace_row(subspace) for subspace in large])
    show.plain(
        f"shares of the gap: features {sum(f.share for f in discovery.features):.2f}, "
        f"between features {discovery.cross:.2f} ({discovery.between:.2f} between independent ones), "
        f"through means {discovery.mean:.2f}, "
        f"outside the subspace {discovery.outside:.2f}"
    )
    for warning in discovery.warnings:
        show.plain(f"note: {warning}")


def _subspace_row(subspace: MatchedSubspace) -> tuple[str, ...]:
    numbers = f"{subspace.share:.2f} ±{subspace.share_error:.2f}", f"{subspace.dependence:.2f}", f"{subspace.p:.3f}"
    return ", ".join(map(str, subspace.members)), str(subspace.rank), *numbers


def _features_record(result: HeadFeatures) -> dict[str, Any]:
    discovery = result.discovery
    features = []
    for feature, pairs in zip(discovery.features, result.pairs, strict=True):
        sides = {
            name: {
                "direction": side.direction.tolist(),
                "stability": side.stability,
                "kurtosis": side.kurtosis,
                "kurtosis_error": side.kurtosis_error,
            }
            for name, side in (("query", feature.query), ("key", feature.key))
        }
        numbers = {name: getattr(feature, name) for name in ("share", "share_error", "correlation", "coupling")}
        features.append(
            {**numbers, "identified": feature.identified, **sides, "pairs": [asdict(pair) for pair in pairs]}
        )
    rests = {name: getattr(discovery, name) for name in ("gap", "cross", "mean", "outside", "mean_energy")}
    where = {"head": f"{result.data.layer}.{result.data.head}", "view": asdict(result.data.view)}
    names = ("members", "rank", "share", "share_error", "dependence", "p")
    subspaces = [{name: getattr(subspace, name) for name in names} for subspace in discovery.subspaces]
    rests |= {"between": discovery.between, "subspaces": subspaces}
    return {**where, "rank": discovery.rank, **rests, "features": features, "warnings": list(discovery.warnings)}
