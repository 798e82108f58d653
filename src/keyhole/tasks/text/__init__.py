"""Words that tasks are made of, and texts beside them: what the organism reads, filler, real prose."""
