"""How are the figures on singular vector tracing measured? Heads, signals and networks of IOI prompts."""
