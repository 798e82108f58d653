"""What does a signal mean? Examples of where it fires, names for it, and an honest test of the names."""
