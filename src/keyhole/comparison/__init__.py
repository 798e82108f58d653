"""How do circuits differ? Terms, signals, effects and scores of two stores, families or circuits, published ones too."""
