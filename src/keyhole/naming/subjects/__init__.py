"""What is named? Signals of circuits and stores, channels of heads, features of contrasts and discovered ones."""

from keyhole._moved import names_of
from keyhole.naming.subjects.kinds import channel_subjects as channel_subjects
from keyhole.naming.subjects.kinds import contrast_subjects as contrast_subjects
from keyhole.naming.subjects.kinds import discovered_subjects as discovered_subjects
from keyhole.naming.subjects.kinds import signal_subjects as signal_subjects
from keyhole.naming.subjects.kinds import store_subjects as store_subjects
from keyhole.naming.subjects.subject import opposite as opposite

__all__ = [
    "channel_subjects",
    "contrast_subjects",
    "discovered_subjects",
    "opposite",
    "signal_subjects",
    "store_subjects",
]

__getattr__ = names_of("keyhole.naming.subjects")
