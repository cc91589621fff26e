"""The layers of a model in two places: the edge computes the lower ones, a verifier the others."""
