"""Lookahead decoding."""
