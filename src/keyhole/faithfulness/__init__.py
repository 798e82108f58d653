"""How much of an answer do edges carry? The pass with masks, shares, effects, and circuits that suffice."""
