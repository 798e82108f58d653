"""Do attention and the answer follow a feature? Its coordinates swapped, replaced, and read off a row of logits."""
