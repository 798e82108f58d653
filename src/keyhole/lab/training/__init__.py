"""How does attention become sparse while a language model learns? Trainings, checkpoints, roles of heads, curves."""
