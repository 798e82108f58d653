"""Interventions: remove or boost signals in the model's own forward pass, and see whether predictions hold.

intervene(run, cuts, metric)         cuts of one's own: of an edge, a side, everything that leaves a node, a path
remove_causes(write, metric)         what an MLP reads without the causes of its write
answers_without(run, sets, metric)   the answer when some writers write nothing
all_but(run, writers)                all other places: without them, only these write
estimate(run, metric)                what it would lose without each writer, to first order: gradient times write
mean_writes(runs)                    what to write instead of nothing: the mean over prompts that are alike
"""

from keyhole._moved import names_of
from keyhole.intervene.cuts import CausesRemoved, edge_cut, parallel, remove_causes, serial, side_cut
from keyhole.intervene.removal import Cut, Metric, Mode, Outcome, intervene, random_cut
from keyhole.intervene.writers import Estimates, all_but, answers_without, estimate, mean_writes, places

__all__ = [
    "CausesRemoved",
    "Cut",
    "Estimates",
    "Metric",
    "Mode",
    "Outcome",
    "all_but",
    "answers_without",
    "edge_cut",
    "estimate",
    "intervene",
    "mean_writes",
    "parallel",
    "places",
    "random_cut",
    "remove_causes",
    "serial",
    "side_cut",
]

__getattr__ = names_of("keyhole.intervene")
