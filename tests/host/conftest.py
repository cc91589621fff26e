"""Fixtures of the host's tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.host_job import Job


@pytest.fixture(scope="package", autouse=True)
def small_heap() -> Iterator[None]:
    """The host collects garbage after each test case. What other tests have imported need not be looked through."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A working job; the current directory is its folder."""
    monkeypatch.chdir(tmp_path)
    return Job(tmp_path)
