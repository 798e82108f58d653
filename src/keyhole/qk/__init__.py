"""The query-key form of attention heads: singular channels, and how scores split over them.

`run.channels(head, dest, src)` splits one score; the basis of a layer is `keyhole.qk.omega.omega(model, layer)`.
"""

from keyhole._moved import names_of
from keyhole.qk.channels import Channels, InChannels, in_channels, n_recon, n_recon_each, score_row, sparsity_each
from keyhole.qk.controls import RotationControl, SliceUse, rotation_control, slice_sets, slice_use
from keyhole.qk.firings import FiringTable, Site, find_firings
from keyhole.qk.omega import Basis, Omega, blocks, decompose

__all__ = [
    "Basis",
    "Channels",
    "FiringTable",
    "InChannels",
    "Omega",
    "RotationControl",
    "Site",
    "SliceUse",
    "blocks",
    "decompose",
    "find_firings",
    "in_channels",
    "n_recon",
    "n_recon_each",
    "rotation_control",
    "score_row",
    "slice_sets",
    "slice_use",
    "sparsity_each",
]

__getattr__ = names_of("keyhole.qk")
