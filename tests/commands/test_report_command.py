"""``specdec report`` where the page cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.workspace import Bench, choice, usual


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_an_unwritable_workspace_suggests_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    bench = usual(Bench(tmp_path / "bench", [choice(number) for number in range(2)]))

    def refuse(path: Path, text: str) -> None:
        raise OSError(error, "no page here")

    with monkeypatch.context() as patched:
        patched.setattr("ianvs_specdec.records.identity.write_atomically", refuse)
        assert main(["report", str(bench.folder)]) != 0
        told = capsys.readouterr().err
        assert f"cannot write {bench.folder / 'report.html'}: no page here; --out FILE.html writes" in told
        assert "Traceback" not in told
        assert main(["report", str(bench.folder), "--out", str(tmp_path / "own.html")]) != 0
        assert "--out" not in capsys.readouterr().err
    assert main(["report", str(bench.folder), "--out", str(tmp_path / "own.html")]) == 0
    assert not (bench.folder / "report.html").exists()
