"""Are names right? Questions on held-out examples, judges, scores and controls."""
