"""The published packages of drafting methods, unpatched, each run in an environment of its own."""
