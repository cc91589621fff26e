"""The edge: it drafts, and has a verifier far away decide."""
