"""Split speculative decoding: an edge drafts, a verifier computes the target. ``split.proto`` is what they say."""
