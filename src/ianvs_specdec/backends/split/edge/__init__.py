"""The edge, which drafts for a remote verifier."""
