"""Where the environments of the published packages are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ENVIRONMENTS = Path(os.environ.get("SPECDEC_OFFICIAL") or ROOT / "runs" / "official")
FOLDERS = {"eagle-llm": "venv-eagle", "lade": "venv-lade"}


def package_python(package: str) -> Path:
    """The Python of a package's environment; skips the test without one."""
    home = ENVIRONMENTS / FOLDERS[package]
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        pytest.skip(f"no environment {home}: make test-official makes it (or SPECDEC_OFFICIAL names the folder of it)")
    return python
