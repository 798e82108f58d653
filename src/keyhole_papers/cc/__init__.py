"""How are the figures on contrastive covariances measured? Payload heads, and heads of language models."""
