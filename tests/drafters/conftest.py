"""The reference fixtures, as the tests of the decoding core have them."""

from __future__ import annotations

from decoding.conftest import mt_bench, reference_model, shared

__all__ = ["mt_bench", "reference_model", "shared"]
