"""How many channels do heads of language models need? Counted over many prompts, against rotated bases."""
