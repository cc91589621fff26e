"""Durable files: append-only lines, atomic replacement, folder locks."""
