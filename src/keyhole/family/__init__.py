"""Do circuits come in families? Circuits of a store as sets, their distances, families and representatives."""

from keyhole.family.columns import Granularity
from keyhole.family.sets import Sets, circuit_sets, store_sets
from keyhole.family.terms import Component, Term

__all__ = ["Component", "Granularity", "Sets", "Term", "circuit_sets", "store_sets"]
