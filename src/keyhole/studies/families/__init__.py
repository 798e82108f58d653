"""Do circuits come in families? Circuits of a store as sets, their distances, families and representatives."""

from keyhole._exports import keep_names
from keyhole.circuits.records import Component
from keyhole.studies.families.agreement import (
    Agreement,
    Representative,
    adjusted_rand,
    agreements,
    labels_of,
    medoid,
    mutual_information,
    representatives,
)
from keyhole.studies.families.clusters import Clustering, Null, clusters
from keyhole.studies.families.cuts import Cut
from keyhole.studies.families.distances import Granularity, between, jaccard
from keyhole.studies.families.families import families
from keyhole.studies.families.record import Average, Families, Family, Level, averages
from keyhole.studies.families.sets import Sets, Term, circuit_sets, store_sets

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

keep_names(__name__)
