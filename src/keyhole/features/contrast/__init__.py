"""Which query-key feature tells these keys from those? Contrasts, their features, and proofs by intervention.

found = model.contrast(contrast)               every head; found.heads[0].swap(), .answers(), .attribute(run)
contrast = Contrast.from_roles(...)            or from_texts, load, or Contrast(name, prompts, samples): a sample is a
                                               query site, its positive and its negative key sites
seen = collect(model, contrast)                one pass, every head
features = find_features(seen)                 subspaces, ranks with nulls
rank_heads, swap_effects, answer_effects       what they explain, and what moves when they are swapped
study(model, fits, test)                       all of it
"""

from keyhole._exports import keep_names
from keyhole.features.contrast.alternatives import Alternative, NoFeature
from keyhole.features.contrast.attribution import angles, attribute
from keyhole.features.contrast.boxes import boxes_test, lexical_contrast, order_contrast, reflexive_contrast
from keyhole.features.contrast.collect import Collected, collect
from keyhole.features.contrast.finding import Feature, Features, find_features
from keyhole.features.contrast.found import Found, FoundHead
from keyhole.features.contrast.lists import lists_contrast, lists_test, sweep_ranks
from keyhole.features.contrast.moves import pair_keys
from keyhole.features.contrast.ranking import channel_shares, head_attention, rank_heads, select_heads
from keyhole.features.contrast.sites import (
    Contrast,
    Place,
    Sample,
    Site,
    find,
    last,
    read_contrast,
    regex,
    role,
    span,
    token,
    write_contrast,
)
from keyhole.features.contrast.studies import Selection, Study, StudySettings, study
from keyhole.features.contrast.swaps import answer_effects, key_bases, query_bases, query_effects, swap_effects

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

keep_names(__name__)
