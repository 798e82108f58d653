"""Commands of the laboratory, and published results again."""
