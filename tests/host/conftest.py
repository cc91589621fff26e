"""Fixtures of the host's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_job import Job


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A working job; the current directory is its folder."""
    monkeypatch.chdir(tmp_path)
    return Job(tmp_path)
