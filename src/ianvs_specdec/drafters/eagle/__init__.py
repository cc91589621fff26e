"""EAGLE-1, EAGLE-2 and EAGLE-3: a one-layer head on the target's hidden states."""
