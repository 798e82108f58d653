"""How do families of circuits read in a browser?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keyhole.brief import model_label
from keyhole.figures.style import Cell, Section, page
from keyhole.studies.families.figure import families_figure

if TYPE_CHECKING:
    from keyhole.studies.families.agreement import Beside
    from keyhole.studies.families.record import Families


def families_page(found: "Families") -> str:
    """One self-contained page: what was found, the map, and every table."""
    from keyhole.studies.families.report import asked_text, verdict

    about = found.about
    summary = f"{verdict(found)}\n\n{asked_text(found)}."
    sections = [
        _families(found),
        _agreement(found),
        _apart(found),
        _cuts(found),
        _averages(found),
        _representatives(found),
    ]
    return page(f"Families of circuits: {about.task} on {model_label(about.model)}", summary, sections)


def _families(found: "Families") -> Section:
    from keyhole.studies.families.report import common_text

    rows: list[Sequence[Cell]] = [
        (
            str(one.number),
            one.size,
            one.representative,
            one.stability,
            one.silhouette,
            one.mean_distance,
            round(one.mean_size),
            common_text(one),
        )
        for one in found.families
    ]
    columns = ["family", ">circuits", ">represented by prompt", ">stability", ">silhouette", ">mean distance"]
    return Section(
        "Families",
        "Tree by average linkage, labels of the prompts, and all distances in the tree's order. Stability is the mean "
        "Jaccard of a family with its nearest in resampled circuits; 0.75 is usually called stable. A representative "
        "has the least summed distance to its family.",
        [*columns, ">terms", "what most members share"],
        rows,
        families_figure(found),
        "Dendrogram, label bars and map of Jaccard distances between circuits",
    )


def _agreement(found: "Families") -> Section:
    from keyhole.studies.families.report import level_rows

    rows = [
        (level.granularity, one.label, one.values, *_two(one.ari), *_two(one.nmi), *_two(one.tree))
        for level, one in level_rows(found)
    ]
    return Section(
        "Labels and cuts",
        "Do families follow a label? In brackets: what 95 % of shuffled labels stay below. ARI and NMI are of the best "
        "cut at each granularity, whether it is believed or not; the last ARI is of the cut into as many families as "
        "the label has values.",
        ["sets of", "label", ">values", ">ARI", ">p", ">NMI", ">p", ">ARI, cut into as many", ">p"],
        rows,
    )


def _apart(found: "Families") -> Section:
    from keyhole.studies.families.report import level_rows

    rows = [
        (
            *(level.granularity, one.label, one.within, one.between),
            *(*_two(one.explained), one.pseudo_f, *_two(one.nearest)),
        )
        for level, one in level_rows(found)
    ]
    return Section(
        "Labels and distances",
        "Are circuits of one value nearer to each other? Mean distances within and between values; the share of "
        "squared distances that lies between values (in brackets, what 95 % of shuffled labels stay below); and the "
        "share of circuits whose nearest other circuit has the same value.",
        ["sets of", "label", ">within", ">between", ">explained", ">p", ">pseudo-F", ">nearest alike", ">p"],
        rows,
    )


def _two(one: "Beside | None") -> tuple[Cell, Cell]:
    return (None, None) if one is None else (f"{one.value:.3f} ({one.high:.3f})", one.p)


def _cuts(found: "Families") -> Section:
    from keyhole.studies.families.report import believed_text, nulls_text

    rows, told = [], []
    for level in found.levels:
        clustering = level.clustering
        if clustering.cut is not None:
            believed = believed_text(clustering) or ", believed"
            told.append(f"{level.granularity}: {clustering.cut.families}{believed}; {nulls_text(clustering)}.")
        for i, (cut, own) in enumerate(zip(clustering.cuts, clustering.stability, strict=True)):
            best = "best" if i == clustering.best else ""
            mean, least = float(own.mean()), float(own.min())
            rows.append((level.granularity, cut.families, cut.silhouette, mean, least, cut.outside, best))
    columns = ["sets of", ">families", ">silhouette", ">stability, mean", ">stability, least", ">circuits outside", ""]
    text = (
        "The best cut of the tree for each number of families; clusters of fewer circuits than a family has lie "
        "outside. A cut is believed if it is stable and better than 95 % of cuts in worlds without families, by margin "
        "(the silhouette that four of five circuits exceed) and by what it explains of squared distances: circuits "
        "shuffled so that each keeps its size and each term its frequency, and one Gaussian cloud of the circuits' "
        "covariance. A split is stable and no matter of sizes and frequencies, and along their longest direction "
        "circuits heap up in more than one place; but it may have no border."
    )
    return Section("Cuts", "\n\n".join([text, *told]), columns, rows)


def _averages(found: "Families") -> Section:
    rows = [
        (
            one.group,
            one.circuits,
            one.mean_size,
            one.union,
            one.size,
            one.nearest,
            one.typical,
            one.held,
            one.whole,
            one.missed,
            one.variance,
            one.deviation,
            one.again,
        )
        for one in found.averages
    ]
    columns = ["group", ">circuits", ">terms of one", ">of any", ">of half", ">nearest circuit", ">mean circuit"]
    columns += [
        ">most of it in one",
        ">has all of it",
        ">missed of one",
        ">variance",
        ">deviation",
        ">resampled",
    ]
    return Section(
        "Averaged circuits",
        "The averaged circuit has the terms that half of the circuits have. How much of it is any prompt's circuit: "
        "its Jaccard with the nearest circuit and with one on average, the largest share of it that one circuit has, "
        "the share of circuits that have all of it, and the share of a circuit's terms that it misses. Variance: of "
        "its terms from prompt to prompt; deviation: of their shares under bootstrap; resampled: its Jaccard with the "
        "average of resampled prompts.",
        columns,
        rows,
    )


def _representatives(found: "Families") -> Section:
    rows = [(one.group, one.prompt, one.circuits, one.mean_distance) for one in found.representatives]
    return Section(
        "Representatives",
        "The circuit of each group with the least summed distance to the others.",
        ["group", ">prompt", ">circuits", ">mean distance"],
        rows,
    )
