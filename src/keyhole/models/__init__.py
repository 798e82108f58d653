"""Models: loading, families of architectures, captured runs."""
