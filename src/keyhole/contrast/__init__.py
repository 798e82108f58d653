"""Which query-key feature tells these keys from those? Contrasts, their features, and proofs by intervention.

found = model.contrast(contrast)               every head; found.heads[0].swap(), .answers(), .attribute(run)
contrast = Contrast.from_roles(...)            or from_texts, load, or Contrast(name, prompts, samples): a sample is a
                                               query site, its positive and its negative key sites
seen = collect(model, contrast)                one pass, every head
features = find_features(seen)                 subspaces, ranks with nulls
rank_heads, swap_effects, answer_effects       what they explain, and what moves when they are swapped
study(model, fits, test)                       all of it
"""

from keyhole.contrast.alternatives import Alternative, NoFeature
from keyhole.contrast.data.files import read_contrast, write_contrast
from keyhole.contrast.data.sites import Contrast, Place, Sample, Site, find, last, regex, role, span, token
from keyhole.contrast.edits.answers import answer_effects
from keyhole.contrast.edits.attribution import angles, attribute
from keyhole.contrast.edits.pairing import pair_keys
from keyhole.contrast.edits.swaps import key_bases, query_bases, query_effects, swap_effects
from keyhole.contrast.features.basis import channel_shares
from keyhole.contrast.features.finding import Feature, Features, find_features
from keyhole.contrast.features.ranking import rank_heads
from keyhole.contrast.features.selection import head_attention, select_heads
from keyhole.contrast.found import Found, FoundHead
from keyhole.contrast.onepass.collect import Collected, collect
from keyhole.contrast.recipes.boxes import boxes_test, lexical_contrast, order_contrast, reflexive_contrast
from keyhole.contrast.recipes.lists import lists_contrast, lists_test
from keyhole.contrast.recipes.sweep import sweep_ranks
from keyhole.contrast.studies import Selection, Study, StudySettings, study

__all__ = [
    "Alternative",
    "Collected",
    "Contrast",
    "Feature",
    "Features",
    "Found",
    "FoundHead",
    "NoFeature",
    "Place",
    "Sample",
    "Selection",
    "Site",
    "Study",
    "StudySettings",
    "angles",
    "answer_effects",
    "attribute",
    "boxes_test",
    "channel_shares",
    "collect",
    "find",
    "find_features",
    "head_attention",
    "key_bases",
    "last",
    "lexical_contrast",
    "lists_contrast",
    "lists_test",
    "order_contrast",
    "pair_keys",
    "query_bases",
    "query_effects",
    "rank_heads",
    "read_contrast",
    "reflexive_contrast",
    "regex",
    "role",
    "select_heads",
    "span",
    "study",
    "swap_effects",
    "sweep_ranks",
    "token",
    "write_contrast",
]
