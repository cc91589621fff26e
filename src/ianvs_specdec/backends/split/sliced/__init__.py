"""Sliced models: the edge computes the lower layers, a verifier the others."""
