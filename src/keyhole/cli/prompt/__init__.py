"""Commands on one prompt: heads, channels, explain, trace, verify."""
