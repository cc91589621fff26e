"""Append-only files: atomic appends on a full disk, at most one torn line after a kill, periodic syncs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ianvs_specdec.common.storage import lines
from ianvs_specdec.common.storage.lines import LineFile

LINE = b'{"number": 1}\n'


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
@pytest.mark.parametrize("room", [0, len(LINE) - 1])
def test_a_full_disk_leaves_no_partial_line(tmp_path: Path, room: int) -> None:
    from tests.support.full_disk import files_end_at

    file = LineFile(tmp_path / "lines")
    file.append(LINE)
    with files_end_at(len(LINE) + room), pytest.raises(OSError, match=r"File too large|disk is full"):
        file.append(LINE)
    assert file.path.read_bytes() == LINE
    file.append(LINE)
    assert file.path.read_bytes() == 2 * LINE


def test_the_next_append_terminates_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lines"
    path.parent.mkdir()
    path.write_bytes(LINE + LINE[:5])
    LineFile(path).append(LINE)
    assert path.read_bytes() == LINE + LINE[:5] + b"\n" + LINE


def test_a_held_lock_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LOCK_SECONDS", 0.01)
    first, second = LineFile(tmp_path / "lines"), LineFile(tmp_path / "lines")
    with first._lock, pytest.raises(OSError, match="another process has held"):
        second.append(LINE)


def test_lines_are_synced_periodically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    file = LineFile(tmp_path / "lines")
    file.append(b"")
    file.sync()
    assert not forced, "nothing was appended"
    file.append(LINE)
    assert not forced
    file.sync()
    assert len(forced) == 2, "the file and its folder"
    file.sync()
    assert len(forced) == 2, "nothing has been appended since"
    monkeypatch.setattr(lines, "SYNC_SECONDS", 0.0)
    file.append(LINE)
    assert len(forced) == 4

    def broken(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    file.append(LINE)
    (message,) = caplog.messages
    assert message.endswith("may not be on the disk: Input/output error")


KILLED = """
import sys
from pathlib import Path
from ianvs_specdec.common.storage.lines import LineFile
file = LineFile(Path(sys.argv[1]))
number = 0
while True:
    file.append(b'%d %s\\n' % (number, b'x' * 5000))
    number += 1
    print(number, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_process_loses_no_completed_append(tmp_path: Path) -> None:
    path, total = tmp_path / "lines", 0
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(5 + 7 * attempt)]
        process.kill()
        printed += process.communicate()[0].splitlines()
        total += len(printed)
        whole = [line for line in path.read_bytes().split(b"\n") if line.endswith(5000 * b"x")]
        assert total <= len(whole) <= total + attempt + 1
