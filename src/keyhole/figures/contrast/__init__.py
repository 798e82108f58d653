"""Figures of contrasts and of the payload toy: ranks, clouds, interventions, attributions."""
