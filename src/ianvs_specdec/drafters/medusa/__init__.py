"""Medusa: extra output heads, one for each position ahead."""
