"""Fixtures of sweeps."""

from tests.support.load_generator import data, guidellm, stub

__all__ = ["data", "guidellm", "stub"]
