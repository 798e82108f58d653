"""How do families read? As a report, and as plain values."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from keyhole.brief import model_label
from keyhole.report import Cell, Picture, Report, Section, Table
from keyhole.studies.families.clusters import LEVEL, MEASURES, Clustering
from keyhole.studies.families.cuts import OUTSIDE, STABLE
from keyhole.studies.families.distances import WHAT

if TYPE_CHECKING:
    from keyhole.studies.families.agreement import Agreement, Beside
    from keyhole.studies.families.record import Families, Family, Level


def report(result: "Families") -> Report:
    """What was cut, which families there are, and how significant they are."""
    from keyhole.studies.families.figure import families_figure

    about, chosen = result.about, {family.representative for family in result.families}
    picture = Picture(lambda: families_figure(result), "Dendrogram, label bars and map of distances between circuits")
    numbers = " ".join(filter(None, [numbers_text(result), rest_text(result)]))
    rows = [(i, k, int(i in chosen)) for i, k in zip(result.prompts.tolist(), result.labels.tolist(), strict=True)]
    return Report(
        f"Families of circuits: {about.task} on {model_label(about.model)}",
        "\n\n".join(filter(None, [plain_verdict(result), asked_text(result), numbers])),
        [
            Section("Families", [_FAMILIES, picture, _families(result)]),
            Section("Labels and cuts", [_LABELS, _agreement(result)]),
            Section("Labels and distances", [_APART, _distances(result)]),
            Section("Cuts", ["\n".join(_level_line(level) for level in result.levels)]),
            Section("Cuts into other numbers of families", [_CUTS, _cuts(result)], page_only=True),
            Section("Averaged circuits", [_AVERAGED, *_averages(result)]),
            Section("Representatives", [_NEAREST, _representatives(result)], page_only=True),
        ],
        Table(("prompt", "family", "representative"), rows),
        picture,
    )


_FAMILIES = (
    "Stability is the mean Jaccard of a family with its nearest in resampled circuits; a family is usually called "
    f"stable from {STABLE} on. Prompt: whose circuit represents the family, with the least summed distance to the "
    "others. Distance: the mean of two members."
)
_LABELS = (
    "Do families follow a label? In brackets: what 95 % of shuffled labels stay below. ARI and NMI are of the best cut "
    "at each granularity, whether it is significant or not; the last ARI is of the cut into as many families as the "
    "label has values."
)
_APART = (
    "Are circuits of one value nearer to each other? Mean distances within and between values; the share of squared "
    "distances that lies between values (in brackets, what 95 % of shuffled labels stay below); and the share of "
    "circuits whose nearest other circuit has the same value."
)
_CUTS = (
    "The best cut of the tree for each number of families; smaller clusters than the least family lie outside.\n\n"
    "A cut is significant if it is stable and better than 95 % of the cuts of circuits without families. Two measures "
    "are compared: the margin (the silhouette that four of five circuits exceed) and the share of squared distances "
    "that the cut explains. There are two null models: circuits shuffled so that each keeps its size and each term its "
    "frequency, and one Gaussian cloud with the circuits' covariance.\n\n"
    "A split is a stable cut that shuffled circuits do not give, of circuits with more than one mode along their "
    "longest direction. There may be no border between its parts."
)
_AVERAGED = (
    "The averaged circuit has the terms that half of the circuits have. How near is it to the circuit of any prompt? "
    "Its Jaccard with the nearest circuit and with one on average, the largest share of it that one circuit has, the "
    "share of circuits that have all of it, and the share of a circuit's terms that it misses. Variance: of its terms "
    "from prompt to prompt; deviation: of their shares under bootstrap; resampled: its Jaccard with the average of "
    "resampled prompts."
)
_NEAREST = "The circuit of each group with the least summed distance to the others."


def _families(result: "Families") -> Table:
    columns = ("family", ">circuits", ">prompt", ">stability", ">silhouette", ">distance", ">terms")
    return Table(
        (*columns, "most members share"),
        [
            (
                *(str(family.number), family.size, str(family.representative), family.stability, family.silhouette),
                *(family.mean_distance, round(family.mean_size), common_text(family)),
            )
            for family in result.families
        ],
    )


def _agreement(result: "Families") -> Table:
    columns = ("sets of", "label", ">values", ">ARI", ">p", ">NMI", ">p", ">ARI, cut into as many", ">p")
    return Table(
        columns,
        [
            (
                level.granularity,
                agreement.label,
                agreement.values,
                *_two(agreement.ari),
                *_two(agreement.nmi),
                *_two(agreement.tree),
            )
            for level, agreement in _level_rows(result)
        ],
    )


def _distances(result: "Families") -> Table:
    columns = ("sets of", "label", ">within", ">between", ">explained", ">p", ">pseudo-F", ">nearest alike", ">p")
    return Table(
        columns,
        [
            (
                *(level.granularity, agreement.label, agreement.within, agreement.between),
                *(*_two(agreement.explained), agreement.pseudo_f, *_two(agreement.nearest)),
            )
            for level, agreement in _level_rows(result)
        ],
    )


def _two(measure: "Beside | None") -> tuple[Cell, Cell]:
    return (None, None) if measure is None else (f"{measure.value:.3f} ({measure.high:.3f})", measure.p)


def _level_rows(result: "Families") -> Iterator[tuple["Level", "Agreement"]]:
    """Every label at every granularity."""
    for level in result.levels:
        for agreement in level.agreement:
            yield level, agreement


def _level_line(level: "Level") -> str:
    cut, apart = level.clustering.cut, f"{WHAT[level.granularity]}: {level.mean_distance:.3f} apart"
    if cut is None:
        return f"{apart}; no cut"
    significant = significance_text(level.clustering) or ", significant"
    return f"{apart}; a cut into {cut.families}{significant}; {nulls_text(level.clustering)}"


def _cuts(result: "Families") -> Table:
    columns = ("sets of", ">families", ">silhouette", ">stability, mean", ">stability, least", ">circuits outside", "")
    rows: list[Sequence[Cell]] = []
    for level in result.levels:
        clustering = level.clustering
        for i, (cut, stabilities) in enumerate(zip(clustering.cuts, clustering.stability, strict=True)):
            stability = float(stabilities.mean()), float(stabilities.min())
            best = "best" if i == clustering.best else ""
            rows.append((level.granularity, cut.families, cut.silhouette, *stability, cut.outside, best))
    return Table(columns, rows)


def _averages(result: "Families") -> list[Table]:
    """Two tables of averaged circuits: how near circuits are to them, and how much of them circuits have."""
    near = ("group", ">circuits", ">terms of one", ">of any", ">of half", ">nearest circuit", ">mean circuit")
    having = (
        "group",
        ">most of it in one",
        ">has all of it",
        ">missed of one",
        ">variance",
        ">deviation",
        ">resampled",
    )
    sizes = [
        (
            average.group,
            average.circuits,
            round(average.mean_size),
            average.union,
            average.size,
            average.nearest,
            average.typical,
        )
        for average in result.averages
    ]
    parts = [
        (average.group, average.held, average.whole, average.missed, average.variance, average.deviation, average.again)
        for average in result.averages
    ]
    return [Table(near, sizes), Table(having, parts)]


def _representatives(result: "Families") -> Table:
    columns = ("group", ">prompt", ">circuits", ">mean distance")
    return Table(columns, [(r.group, str(r.prompt), r.circuits, r.mean_distance) for r in result.representatives])


def asked_text(result: "Families") -> str:
    """Which circuits were compared, and as which sets."""
    about = result.about
    how = [WHAT[about.granularity]]
    how += ["with sides" if about.side else "without sides"] if about.granularity != "heads" else []
    how += ["with the roles of tokens"] if about.role else ["without tokens"]
    how += ["weighted by influence"] if about.weighted else []
    sampled = f", of which {about.sampled:,} were cut" if about.sampled < about.matching else ""
    return (
        f"{about.matching:,} of {about.circuits:,} circuits ({about.where}) from {about.prompts:,} prompts of "
        f"{about.store}{sampled}; as sets of {', '.join(how)}"
    )


def verdict(result: "Families") -> str:
    """Are there families? In a plain sentence, and by numbers."""
    return " ".join(filter(None, [plain_verdict(result), numbers_text(result)]))


def plain_verdict(result: "Families") -> str:
    """Are there families? In a sentence without numbers."""
    clustering = result.clustering
    if clustering.cut is None:
        return "One family: no cut of the tree leaves two groups that hold half of the circuits."
    many = f"{len(result.families)} families{', as asked' * clustering.given}"
    if clustering.separate:
        return f"{many}: other prompts would give the same, and they stand further apart than where there are none."
    doubts = ["is not stable, so that other prompts would give a different one"] * (not clustering.stable)
    if not clustering.nulls or any(null.p > LEVEL for null in clustering.nulls):
        doubts.append("is not clearly better than cuts where there are no families")
    doubt = ", and ".join(doubts)
    if clustering.given:
        return f"{many}, but this cut {doubt}."
    return f"One family: the best cut, into {clustering.cut.families}, {doubt}."


def numbers_text(result: "Families") -> str:
    """What speaks for the best cut and against it; empty where there is none."""
    clustering, outside = result.clustering, int((result.labels == OUTSIDE).sum())
    if clustering.cut is None:
        return ""
    left = f"; outside of all: {outside:,}, in clusters of fewer than {clustering.least}" if outside else ""
    shown = f"silhouette {clustering.cut.silhouette:.3f}, stability {_stability(clustering):.2f}"
    split = "" if clustering.separate else split_text(clustering)
    return f"This cut: {shown}; {nulls_text(clustering)}{left}.{split}"


def significance_text(clustering: Clustering) -> str:
    """What follows the number of families of a cut that is not significant."""
    return "" if clustering.separate else ", not significant" + ", though a split" * clustering.split


def split_text(clustering: Clustering) -> str:
    """What speaks for a split where no cut is significant."""
    if clustering.modes is None or not clustering.split:
        return ""
    cut = "" if clustering.given or clustering.cut is None else f" (--k {clustering.cut.families} takes this cut)"
    return (
        f" Yet there is a split: the cut is stable, sizes and frequencies do not explain it, and along their longest "
        f"direction circuits have more than one mode (p {clustering.modes.p:.3f}). That there is a border between its "
        f"parts is not shown{cut}."
    )


def rest_text(result: "Families") -> str:
    """Where circuits beyond the sample were assigned, and how well that works."""
    rest = result.rest
    if rest is None or len(result.families) < 2:
        return ""
    return (
        f"{rest.circuits:,} circuits beyond the sample went to the nearest family, {rest.outside:,} to none; "
        f"{rest.held_out:,} held-out circuits, assigned in the same way, agree with it by ARI {rest.agreement:.2f}."
    )


def nulls_text(clustering: Clustering) -> str:
    """Both measures of a cut, against the 95 % quantile of circuits without families."""
    texts = []
    for measure in MEASURES:
        nulls = [null for null in clustering.nulls if null.measure == measure]
        against = ", ".join(f"{null.high:.3f} {null.name} (p {null.p:.2f})" for null in nulls)
        texts += [f"{measure} {nulls[0].value:.3f} against {against}"] if nulls else []
    return "; ".join(texts)


def common_text(family: "Family") -> str:
    """What most members have in common, by label; shares below 30 % are left out."""
    texts = [f"{name} {value} {share:.0%}" for name, (value, share) in family.common.items() if share >= 0.3]
    return ", ".join(texts) or "no label"


def record(result: "Families") -> dict[str, Any]:
    """All of it as plain values, without distances, trees and cuts of circuits."""
    families = [asdict(family) | {"size": family.size, "members": list(family.members)} for family in result.families]
    return {
        **asdict(result.about),
        "separate": result.clustering.separate,
        "split": result.clustering.split,
        "verdict": verdict(result),
        "families": families,
        "outside": result.prompts[result.labels == OUTSIDE].tolist(),
        "levels": [_level_record(level) for level in result.levels],
        "representatives": [asdict(representative) for representative in result.representatives],
        "averages": [asdict(average) for average in result.averages],
        "rest": None if result.rest is None else asdict(result.rest),
    }


def _level_record(level: "Level") -> dict[str, Any]:
    clustering = level.clustering
    cuts = [
        {
            "families": cut.families,
            "silhouette": cut.silhouette,
            "outside": cut.outside,
            "stability": stability.tolist(),
        }
        for cut, stability in zip(clustering.cuts, clustering.stability, strict=True)
    ]
    return {
        "granularity": level.granularity,
        "terms": level.terms,
        "mean_size": level.mean_size,
        "mean_distance": level.mean_distance,
        "families": None if clustering.cut is None else clustering.cut.families,
        "separate": clustering.separate,
        "split": clustering.split,
        "nulls": [asdict(null) for null in clustering.nulls],
        "modes": None if clustering.modes is None else asdict(clustering.modes),
        "least": clustering.least,
        "cuts": cuts,
        "labels": [asdict(agreement) for agreement in level.agreement],
    }


def _stability(clustering: Clustering) -> float:
    return math.nan if clustering.best is None else float(clustering.stability[clustering.best].mean())
