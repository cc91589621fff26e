"""Algorithms that Sedna brings along."""
