"""The pages: one-file circuits, and what the explorer and notebooks show."""
