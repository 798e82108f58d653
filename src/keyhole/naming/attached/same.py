"""Which signals are the same direction? Those of one head whose queries and keys point the same way, sign and all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch.nn.functional import cosine_similarity

from keyhole.models.heads import Head
from keyhole.naming.subject import Subject

SAME = 0.999  # cosine of both directions
ALIKE = 0.9  # of coordinates in the same channels: a name is then that of the other signal, too
APART = "; "  # between the ids of those that share a direction


def distinct(subjects: Sequence[Subject]) -> list[Subject]:
    """One subject for every direction, the first of each; the others' ids are kept with it ("also")."""
    found: list[Subject] = []
    others: list[list[str]] = []
    heads: dict[Head, list[int]] = {}
    for one in subjects:
        own = heads.setdefault(one.head, [])
        same = next((i for i in own if same_direction(found[i], one)), None)
        if same is None:
            own.append(len(found))
            found.append(one)
            others.append([])
        else:
            others[same].append(one.id)
    return [
        replace(one, about={**one.about, "also": APART.join(ids)}) if ids else one
        for one, ids in zip(found, others, strict=True)
    ]


def same_direction(a: Subject, b: Subject) -> bool:
    """Do both ask and offer the same, with the same sign? Offsets count, too."""
    offsets = ((a.query_offset, b.query_offset), (a.key_offset, b.key_offset))
    if not all(math.isclose(x, y, rel_tol=1 - SAME, abs_tol=1e-6) for x, y in offsets):
        return False
    sides = ((a.query, b.query), (a.key, b.key))
    return all(float(cosine_similarity(x.double(), y.double(), dim=0)) >= SAME for x, y in sides)


def alike(a: Mapping[str, str], b: Mapping[str, str]) -> float:
    """Cosine of two signals of one head by their coordinates, as `about` tells them; 0 in other channels or bases.

    In one channel the sides do not differ; in several they do, since Omega pairs queries with keys.

    >>> one = {"channels": "4", "coordinates": "+1.0000", "side": "dest"}
    >>> alike(one, {"channels": "4", "coordinates": "-1.0000"}), alike(one, {"channels": "5", "coordinates": "+1.0000"})
    (-1.0, 0.0)
    """
    if "coordinates" not in a or "coordinates" not in b:
        return 0.0
    if (a.get("channels"), a.get("basis")) != (b.get("channels"), b.get("basis")):
        return 0.0
    x, y = (np.array([float(value) for value in one["coordinates"].split(",")]) for one in (a, b))
    if len(x) != len(y) or (len(x) > 1 and a.get("side") != b.get("side")):
        return 0.0
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))
