"""Do circuits come in families? Circuits of a store as sets, their distances, families and representatives."""

from keyhole.circuits.writer import Component
from keyhole.family.agreement import Agreement, adjusted_rand, agreements, labels_of, mutual_information
from keyhole.family.averages import Average, averages
from keyhole.family.clusters import Clustering, Null, clusters
from keyhole.family.columns import Granularity
from keyhole.family.cuts import Cut
from keyhole.family.distances import between, jaccard
from keyhole.family.families import families
from keyhole.family.record import Families, Family, Level
from keyhole.family.representatives import Representative, medoid, representatives
from keyhole.family.sets import Sets, circuit_sets, store_sets
from keyhole.family.terms import Term

__all__ = [
    "Agreement",
    "Average",
    "Clustering",
    "Component",
    "Cut",
    "Families",
    "Family",
    "Granularity",
    "Level",
    "Null",
    "Representative",
    "Sets",
    "Term",
    "adjusted_rand",
    "agreements",
    "averages",
    "between",
    "circuit_sets",
    "clusters",
    "families",
    "jaccard",
    "labels_of",
    "medoid",
    "mutual_information",
    "representatives",
    "store_sets",
]
