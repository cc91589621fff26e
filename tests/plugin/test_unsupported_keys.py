"""Under upstream Ianvs, the plugin says once which keys of the job file have no effect there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from ianvs_specdec.plugin import unsupported_keys
from ianvs_specdec.plugin.models import EdgeModel


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that upstream Ianvs was started with."""
    file = tmp_path / "job.yaml"
    monkeypatch.delenv("IANVS_RUN_ID", raising=False)
    monkeypatch.setattr(sys, "argv", ["ianvs", "-f", str(file)])
    unsupported_keys._warn.cache_clear()
    return file


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "upstream Ianvs ignores" in record.getMessage()]


def test_keys_of_our_own_host_are_told_once(
    job: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"repeats": 5, "concurrency": 8, "runner": {"name": "ray"}}
    job.write_text(yaml.safe_dump({"benchmarkingjob": {"name": "job", **keys}}))
    monkeypatch.setattr(EdgeModel, "_open", lambda self: None)
    for _ in range(2):
        EdgeModel.load(EdgeModel.__new__(EdgeModel))
    assert told(caplog) == [
        "upstream Ianvs ignores concurrency: 8 of the job file; use our host for it",
        "upstream Ianvs ignores repeats: 5 of the job file; use our host for it",
        "upstream Ianvs ignores runner: {'name': 'ray'} of the job file; use our host for it",
    ]


def test_what_has_an_effect_is_not_told(
    job: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write_text(yaml.safe_dump({"benchmarkingjob": {"repeats": 1, "runner": {"name": "local"}}}))
    unsupported_keys.warn_unsupported_keys()
    unsupported_keys._warn.cache_clear()
    job.write_text(yaml.safe_dump({"benchmarkingjob": {"repeats": 5}}))
    monkeypatch.setenv("IANVS_RUN_ID", "run")
    unsupported_keys.warn_unsupported_keys()
    assert told(caplog) == []


@pytest.mark.parametrize("text", ["- a\n", "benchmarkingjob: [\n", "benchmarkingjob: 3\n"])
def test_a_file_that_is_no_job_is_no_fault(job: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    job.write_text(text)
    unsupported_keys.warn_unsupported_keys()
    job.unlink()
    unsupported_keys._warn.cache_clear()
    unsupported_keys.warn_unsupported_keys()
    assert told(caplog) == []
