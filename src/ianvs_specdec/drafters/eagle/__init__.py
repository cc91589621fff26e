"""EAGLE-1, EAGLE-2 and EAGLE-3: a head of one layer on the target's hidden states."""
