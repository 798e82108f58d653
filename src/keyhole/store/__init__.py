"""Circuits of many prompts on a disk: Parquet parts that any table tool reads, and exact circuits back."""

from keyhole.store.driver import bulk, estimate
from keyhole.store.engines import Local, Ray
from keyhole.store.manifest import Manifest, Outcome, Status, manifest_of
from keyhole.store.model import model_of
from keyhole.store.parts import Damaged, Part, make_part
from keyhole.store.pilot import Estimate, Load, Memory, Rates
from keyhole.store.settings import BulkSettings, Tracing
from keyhole.store.store import Check, Store, make_store, open_store

__all__ = [
    "BulkSettings",
    "Check",
    "Damaged",
    "Estimate",
    "Load",
    "Local",
    "Manifest",
    "Memory",
    "Outcome",
    "Part",
    "Rates",
    "Ray",
    "Status",
    "Store",
    "Tracing",
    "bulk",
    "estimate",
    "make_part",
    "make_store",
    "manifest_of",
    "model_of",
    "open_store",
]
