"""How do families read? As a report of a few screens, and as plain values."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from keyhole.brief import model_label
from keyhole.studies.families.clusters import LEVEL, MEASURES, Clustering
from keyhole.studies.families.cuts import OUTSIDE, STABLE

if TYPE_CHECKING:
    from keyhole.studies.families.agreement import Agreement, Beside
    from keyhole.studies.families.record import Average, Families, Family, Level

WHAT = {"heads": "heads and MLPs", "edges": "edges", "channels": "edges with their channels"}


def report(found: "Families") -> str:
    """What was cut, what was found, and how far to believe it."""
    return "\n".join([*_opening(found), "", *_of_families(found), "", *_of_levels(found), "", *_of_averages(found)])


def asked_text(found: "Families") -> str:
    """Of which circuits, as which sets."""
    about = found.about
    how = [WHAT[about.granularity]]
    how += ["with sides" if about.side else "without sides"] if about.granularity != "heads" else []
    how += ["with the roles of tokens"] if about.role else ["without tokens"]
    how += ["weighted by influence"] if about.weighted else []
    sampled = f", of which {about.sampled:,} were cut" if about.sampled < about.asked else ""
    return (
        f"{about.asked:,} of {about.circuits:,} circuits ({about.where}) from {about.prompts:,} prompts"
        f"{sampled}; as sets of {', '.join(how)}"
    )


def verdict(found: "Families") -> str:
    """Are there families? In a plain sentence, and by numbers."""
    return " ".join(filter(None, [plain_verdict(found), numbers_text(found)]))


def plain_verdict(found: "Families") -> str:
    """Are there families? In a sentence without numbers."""
    clustering = found.clustering
    if clustering.cut is None:
        return "One family: no cut of the tree leaves two groups that hold half of the circuits."
    many = f"{len(found.families)} families{', as asked' * clustering.given}"
    if clustering.separate:
        return f"{many}: other prompts would give the same, and they stand further apart than where there are none."
    doubts = ["is not stable, so that other prompts would give another"] * (not clustering.stable)
    if not clustering.nulls or any(null.p > LEVEL for null in clustering.nulls):
        doubts.append("is not clearly better than cuts where there are no families")
    doubt = ", and ".join(doubts)
    if clustering.given:
        return f"{many}, but this cut {doubt}."
    return f"One family: the best cut, into {clustering.cut.families}, {doubt}."


def numbers_text(found: "Families") -> str:
    """What speaks for the best cut and against it; empty where there is none."""
    clustering, outside = found.clustering, int((found.labels == OUTSIDE).sum())
    if clustering.cut is None:
        return ""
    left = f"; outside of all: {outside:,}, in clusters of fewer than {clustering.least}" if outside else ""
    shown = f"silhouette {clustering.cut.silhouette:.3f}, stability {_stability(clustering):.2f}"
    split = "" if clustering.separate else split_text(clustering)
    return f"This cut: {shown}; {nulls_text(clustering)}{left}.{split}"


def believed_text(clustering: Clustering) -> str:
    """What is said beside a cut that is not believed."""
    return "" if clustering.separate else ", not believed, though a split" if clustering.split else ", not believed"


def split_text(clustering: Clustering) -> str:
    """What speaks for several heaps where no cut is believed."""
    if clustering.modes is None or not clustering.split:
        return ""
    cut = "" if clustering.given or clustering.cut is None else f" (--k {clustering.cut.families} takes this cut)"
    return (
        f" Yet there is a split: the cut is stable, no matter of sizes and frequencies, and along their longest "
        f"direction circuits heap up in more than one place (one mode: p {clustering.modes.p:.3f}); that there is a "
        f"border between the heaps is not shown{cut}."
    )


def rest_text(found: "Families") -> str:
    """What became of circuits beyond the sample, and how well that works."""
    rest = found.rest
    if rest is None or len(found.families) < 2:
        return ""
    return (
        f"{rest.circuits:,} circuits beyond the sample went to the nearest family, {rest.outside:,} to none; "
        f"{rest.held_out:,} held-out circuits, assigned so, agree with their cut by ARI {rest.agreement:.2f}."
    )


def nulls_text(clustering: Clustering) -> str:
    """Both measures of a cut, beside 95 % of those in worlds without families."""
    told = []
    for measure in MEASURES:
        own = [null for null in clustering.nulls if null.measure == measure]
        beside = ", ".join(f"{null.high:.3f} {null.name} (p {null.p:.2f})" for null in own)
        told += [f"{measure} {own[0].value:.3f} beside {beside}"] if own else []
    return "; ".join(told)


def level_rows(found: "Families") -> Iterator[tuple["Level", "Agreement"]]:
    """Every label at every granularity."""
    for level in found.levels:
        for one in level.agreement:
            yield level, one


def common_text(family: "Family") -> str:
    """What most members share, by label; a share that says little is left out."""
    told = [f"{name} {value} {share:.0%}" for name, (value, share) in family.common.items() if share >= 0.3]
    return ", ".join(told) or "no label"


def beside_text(one: "Beside | None") -> str:
    """A number, what shuffled labels reach, and p."""
    return "-" if one is None else f"{one.value:.3f} ({one.high:.3f}; p {one.p:.3f})"


def average_text(one: "Average") -> str:
    """An averaged circuit in a line."""
    return (
        f"{one.group}: {one.circuits:,} circuits of {one.mean_size:.0f} terms, {one.union:,} in all; {one.size} in "
        f"half of them. The nearest circuit shares {one.nearest:.0%} with this average, one on average "
        f"{one.typical:.0%}; the best has {one.held:.0%} of its terms, {one.whole:.0%} of circuits have all, and "
        f"{one.missed:.0%} of a circuit's terms are not in it. From prompt to prompt its terms vary by "
        f"{one.variance:.3f}; resampled, it keeps {one.again:.0%}"
    )


def record(found: "Families") -> dict[str, Any]:
    """All of it as plain values, without distances, trees and cuts of circuits."""
    families = [asdict(one) | {"size": one.size, "members": list(one.members)} for one in found.families]
    return {
        **asdict(found.about),
        "separate": found.clustering.separate,
        "split": found.clustering.split,
        "verdict": verdict(found),
        "families": families,
        "outside": found.prompts[found.labels == OUTSIDE].tolist(),
        "levels": [_level_record(level) for level in found.levels],
        "representatives": [asdict(one) for one in found.representatives],
        "averages": [asdict(one) for one in found.averages],
        "rest": None if found.rest is None else asdict(found.rest),
    }


def _level_record(level: "Level") -> dict[str, Any]:
    clustering = level.clustering
    cuts = [
        {"families": cut.families, "silhouette": cut.silhouette, "outside": cut.outside, "stability": own.tolist()}
        for cut, own in zip(clustering.cuts, clustering.stability, strict=True)
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
        "labels": [asdict(one) for one in level.agreement],
    }


def _stability(clustering: Clustering) -> float:
    return math.nan if clustering.best is None else float(clustering.stability[clustering.best].mean())


def _opening(found: "Families") -> list[str]:
    about = found.about
    made = f"{about.store}: {about.task} on {model_label(about.model)}"
    lines = [made, asked_text(found), "", verdict(found), rest_text(found)]
    return [line for i, line in enumerate(lines) if line or i == 2]


def _of_families(found: "Families") -> list[str]:
    lines = []
    for one in found.families:
        steady = "" if math.isnan(one.stability) else f", stability {one.stability:.2f}"
        doubt = " (not stable)" if one.stability < STABLE else ""
        lines.append(
            f"family {one.number}: {one.size:,} circuits, represented by prompt {one.representative}{steady}{doubt}; "
            f"{one.mean_size:.0f} terms, {one.mean_distance:.3f} apart; {common_text(one)}"
        )
    return lines


def _of_levels(found: "Families") -> list[str]:
    lines = ["labels: agreement with the cut, and how far they set circuits apart (95 % of shuffled labels; p)"]
    for level in found.levels:
        cut, which = level.clustering.cut, believed_text(level.clustering)
        told = "no cut" if cut is None else f"a cut into {cut.families}{which}"
        lines.append(f"  {WHAT[level.granularity]}: {level.mean_distance:.3f} apart; {told}")
        lines += [
            f"    {one.label} ({one.values}): ARI {beside_text(one.ari)}, NMI {beside_text(one.nmi)}, cut into as many "
            f"{beside_text(one.tree)}, explains "
            f"{beside_text(one.explained)}, nearest alike {beside_text(one.nearest)}"
            for one in level.agreement
        ]
    return lines


def _of_averages(found: "Families") -> list[str]:
    return ["the averaged circuit is had by at least half of the circuits, term by term"] + [
        f"  {average_text(one)}" for one in found.averages
    ]
