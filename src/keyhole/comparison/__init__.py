"""How do circuits differ? Terms, signals, effects and scores of two stores, families, circuits or published ones."""
