"""What is compared with what? Contrasts and their samples, in files, and as tokens of a model."""
