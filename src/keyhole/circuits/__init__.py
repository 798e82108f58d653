"""Circuits: what a trace returns, how it is stored, exported and shown."""
