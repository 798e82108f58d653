"""Figures and pages of stores: families, comparison, curves, sinks, shared signals, stability, names."""
