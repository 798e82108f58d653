"""Many prompts: traced in bulk, on this machine or on a cluster, into a store that can be gone on with at any time."""

from keyhole.many.cost import Load, Memory, Rates, Shape
from keyhole.many.driver import bulk, estimate
from keyhole.many.local import Local
from keyhole.many.on_ray import Ray
from keyhole.many.pilot import Estimate
from keyhole.many.settings import Tracing

__all__ = ["Estimate", "Load", "Local", "Memory", "Rates", "Ray", "Shape", "Tracing", "bulk", "estimate"]
