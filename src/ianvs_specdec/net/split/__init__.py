"""Split speculative decoding: an edge drafts, a verifier computes the target. ``split.proto`` is what they say."""

MAX_IN_FLIGHT = 16
"""Drafts of an answer that may wait for their verdicts."""
