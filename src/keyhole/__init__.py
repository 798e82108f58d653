"""Keyhole: why does this attention head attend here?"""

from keyhole import _openmp as _openmp  # before torch loads
from keyhole.circuits.circuit import Circuit as Circuit
from keyhole.errors import KeyholeError as KeyholeError
from keyhole.exactness import check as check
from keyhole.models.load import load as load
from keyhole.models.model import Model as Model
from keyhole.models.run import Run as Run
from keyhole.qk.channels import Channels as Channels

__version__ = "0.1.0"
