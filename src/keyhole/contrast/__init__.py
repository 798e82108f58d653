"""Which query-key feature tells these keys from those? Contrasts, their features, and proofs by intervention."""
