"""Suffix matching in the context and a corpus (SAMD)."""
