"""Lookahead decoding: n-grams that the target generates on the side."""
