"""What is kept of one pass over all prompts? Queries and keys at a contrast's sites, and their sums, for every head."""
