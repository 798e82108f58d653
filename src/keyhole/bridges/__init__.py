"""What others made of a model: dictionaries of its residual stream, held against our signals.

dictionary.py   the decoder of a sparse autoencoder, out of a safetensors file
vectors.py      the signals of a circuit as vectors
nearest.py      which of its directions are nearest to a signal, beside random ones
"""

from keyhole.bridges.dictionary import Dictionary, dictionary_of, read_dictionary
from keyhole.bridges.nearest import Feature, Nearest, nearest_features
from keyhole.bridges.vectors import edge_vector

__all__ = [
    "Dictionary",
    "Feature",
    "Nearest",
    "dictionary_of",
    "edge_vector",
    "nearest_features",
    "read_dictionary",
]
