"""A smaller language model drafts."""
