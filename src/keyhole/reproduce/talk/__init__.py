"""How are the slides measured that show what no paper does? Signals, one circuit, and attention sinks."""
