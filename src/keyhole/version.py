"""Which Keyhole is this? Apart from the public API, so that what writes it into files need not import all of that."""

__version__ = "0.1.0"
