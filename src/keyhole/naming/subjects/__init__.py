"""What is named? Signals of circuits and stores, channels of heads, features of contrasts and discovered ones."""

from keyhole.naming.subjects.files import channel_subjects as channel_subjects
from keyhole.naming.subjects.files import contrast_subjects as contrast_subjects
from keyhole.naming.subjects.files import discovered_subjects as discovered_subjects
from keyhole.naming.subjects.files import signal_subjects as signal_subjects
from keyhole.naming.subjects.stored import random_subjects as random_subjects
from keyhole.naming.subjects.stored import store_subjects as store_subjects
from keyhole.naming.subjects.subject import opposite as opposite

__all__ = [
    "channel_subjects",
    "contrast_subjects",
    "discovered_subjects",
    "opposite",
    "random_subjects",
    "signal_subjects",
    "store_subjects",
]
