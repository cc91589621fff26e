"""Sedna's own algorithms."""
