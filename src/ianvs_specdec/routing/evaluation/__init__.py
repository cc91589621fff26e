"""Routers measured on outcomes: curves, metrics with intervals, tables and pictures."""
