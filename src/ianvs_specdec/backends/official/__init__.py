"""The published packages of drafting methods, each in its own environment."""
