"""Split decoding: the edge drafts, the cloud verifies."""
