"""What is named? Signals of circuits and stores, channels of heads, features of contrasts and discovered ones."""

from keyhole.naming.subjects.channels import channel_subjects as channel_subjects
from keyhole.naming.subjects.controls import random_subjects as random_subjects
from keyhole.naming.subjects.features import contrast_subjects as contrast_subjects
from keyhole.naming.subjects.features import discovered_subjects as discovered_subjects
from keyhole.naming.subjects.pairs import opposite as opposite
from keyhole.naming.subjects.signals import signal_subjects as signal_subjects
from keyhole.naming.subjects.stored import store_subjects as store_subjects

__all__ = [
    "channel_subjects",
    "contrast_subjects",
    "discovered_subjects",
    "opposite",
    "random_subjects",
    "signal_subjects",
    "store_subjects",
]
