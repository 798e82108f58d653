"""How are the figures on singular vectors and features measured? Toys, theorems, and trainings of language models."""
