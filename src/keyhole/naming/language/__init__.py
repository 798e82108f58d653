"""In what words are names said? Sentences that a rule can read back."""
