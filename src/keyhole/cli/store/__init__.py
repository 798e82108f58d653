"""Commands on many prompts and their store: bulk, families, compare, sinks, shared, curves, stability."""
