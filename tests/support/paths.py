"""Paths of the project, its example, and public files outside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "cloud-edge-speculative-decoding"
SHARED = Path(os.environ.get("SPECDEC_SHARED") or ROOT.parent / "shared")
"""Public benchmark files and reference models."""


def shared_file(*parts: str) -> Path:
    """A file or folder in ``SHARED``; skips the test if it is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {path}; the environment variable SPECDEC_SHARED names another folder")
    return path
