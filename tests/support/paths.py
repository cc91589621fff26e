"""Where things are: the project, its example, and public files that are not part of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "cloud-edge-speculative-decoding"
SHARED = Path(os.environ.get("SPECDEC_SHARED") or ROOT.parent / "shared")
"""Public benchmark files and reference models."""


def shared_file(*parts: str) -> Path:
    """A file or folder of ``SHARED``; the test is skipped where it is not there."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {path}; the environment variable SPECDEC_SHARED names another folder")
    return path
