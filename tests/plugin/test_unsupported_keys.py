"""Under upstream Ianvs, the plugin warns once about keys of the job file that have no effect there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from ianvs_specdec.plugin import models
from ianvs_specdec.plugin.models import EdgeModel


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job file on the command line of upstream Ianvs."""
    file = tmp_path / "job.yaml"
    monkeypatch.delenv("IANVS_RUN_ID", raising=False)
    monkeypatch.setattr(sys, "argv", ["ianvs", "-f", str(file)])
    monkeypatch.setattr(EdgeModel, "_open", lambda self: None)
    return file


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    models._warn_unsupported_keys.cache_clear()
    caplog.clear()
    for _ in range(2):
        EdgeModel.load(EdgeModel.__new__(EdgeModel))
    return [record.getMessage() for record in caplog.records if "upstream Ianvs ignores" in record.getMessage()]


def test_keys_of_our_host_are_named_once(
    job: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"repeats": 5, "concurrency": 8, "runner": {"name": "ray"}}
    job.write_text(yaml.safe_dump({"benchmarkingjob": {"name": "job", **keys}}))
    assert warnings(caplog) == [
        "upstream Ianvs ignores concurrency: 8 of the job file; use our host for it",
        "upstream Ianvs ignores repeats: 5 of the job file; use our host for it",
        "upstream Ianvs ignores runner: {'name': 'ray'} of the job file; use our host for it",
    ]
    monkeypatch.setenv("IANVS_RUN_ID", "run")
    assert warnings(caplog) == [], "our host supports them"


@pytest.mark.parametrize(
    "text",
    ["benchmarkingjob: {repeats: 1, runner: {name: local}}", "- a\n", "benchmarkingjob: [\n", "benchmarkingjob: 3\n"],
)
def test_defaults_and_unreadable_jobs_are_no_warning(job: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    job.write_text(text)
    assert warnings(caplog) == []
    job.unlink()
    assert warnings(caplog) == []
