"""The embedded benchmark: an invented world and its question sets, generated from a seed."""
