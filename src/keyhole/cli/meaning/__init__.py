"""Commands on what signals mean: where, name, features of a sparse autoencoder."""
