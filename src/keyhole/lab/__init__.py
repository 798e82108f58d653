"""Does a method find what was put in? Toys whose features are known, theorems, training of real heads.

models = train_svf([SVFSettings.fast(seed=seed) for seed in range(5)])
alignment(models[0])                           singular vectors against features, three ways
cells = train_payload([PayloadSettings.fast(3, 5, 16)])
latent_feature(cells[0], "z1")                 what a contrast finds, against the latent's rank
known.compare(circuit, machine.truth)          what tracing finds, against a circuit that is known (keyhole.lab.known)
theorem_3(range(5)).margin                     a theorem with what it leaves
sparse_study(model, prompts)                   how many channels heads need, against rotations
emergence(checkpoints, places, prompts)        the same over a training
"""

from keyhole._exports import keep_names
from keyhole.lab.basis import BasisStudy, basis_study
from keyhole.lab.emergence import Emergence, Place, emergence
from keyhole.lab.head_summary import pooled, summaries
from keyhole.lab.payload import Payload
from keyhole.lab.payload import train as train_payload
from keyhole.lab.payload_features import diagonal_share, interaction, latent_feature, swaps
from keyhole.lab.payload_task import PayloadSettings
from keyhole.lab.roles import find_roles
from keyhole.lab.sparse import matched_text, sparse_study
from keyhole.lab.svf import SVF, SVFSettings, declining_pairs
from keyhole.lab.svf_alignment import Alignment, align, alignment, theorem_4
from keyhole.lab.svf_theorems import Check, lemma_3, theorem_1, theorem_2, theorem_3
from keyhole.lab.svf_train import train as train_svf
from keyhole.lab.training_curves import change, curve

__all__ = [
    "SVF",
    "Alignment",
    "BasisStudy",
    "Check",
    "Emergence",
    "Payload",
    "PayloadSettings",
    "Place",
    "SVFSettings",
    "align",
    "alignment",
    "basis_study",
    "change",
    "curve",
    "declining_pairs",
    "diagonal_share",
    "emergence",
    "find_roles",
    "interaction",
    "latent_feature",
    "lemma_3",
    "matched_text",
    "pooled",
    "sparse_study",
    "summaries",
    "swaps",
    "theorem_1",
    "theorem_2",
    "theorem_3",
    "theorem_4",
    "train_payload",
    "train_svf",
]

keep_names(__name__)
