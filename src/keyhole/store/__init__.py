"""Circuits of many prompts on a disk: Parquet parts that any table tool reads, and exact circuits back."""

from keyhole.store.manifest import Manifest, manifest_of
from keyhole.store.model import model_of
from keyhole.store.outcome import Outcome, Status
from keyhole.store.parts import Damaged, Part, make_part
from keyhole.store.store import Check, Store, make_store, open_store

__all__ = [
    "Check",
    "Damaged",
    "Manifest",
    "Outcome",
    "Part",
    "Status",
    "Store",
    "make_part",
    "make_store",
    "manifest_of",
    "model_of",
    "open_store",
]
