"""Interventions: remove or boost signals in the model's own forward pass, and see whether predictions hold."""
