"""``python -m bench.concurrency`` on a small job."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import concurrency
from bench.stub import ask_bare, serving


def test_the_stub_counts_what_it_is_asked() -> None:
    with serving(0.01, 2) as stub:
        ask_bare(stub.url, 12, 3)
        counts = stub.counts()
        assert counts.answers == 12
        assert 1 <= counts.most <= 3
        assert counts.seconds >= 4 * 0.01
        assert stub.counts().answers == 0


def test_a_job_is_measured_beside_the_bare_client(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    options = ["--rows", "20", "--concurrency", "4", "--latency", "0.02", "--pieces", "2", "--repeats", "1"]
    assert concurrency.main([*options, "--work", str(tmp_path / "work")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "20 queries, 4 at a time, 20 ms each"
    assert lines[2].split()[:4] == ["ideal", "200.0", "100.0", "%"]
    assert [line.split()[0] for line in lines[2:]] == ["ideal", "bare", "run"]


def test_options_must_make_sense(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        concurrency.main(["--rows", "0"])
    assert "--rows must be at least 1" in capfd.readouterr().err
