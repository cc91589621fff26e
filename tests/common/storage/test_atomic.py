"""Atomic replacement: the old or the new file, and no leftovers, also after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ianvs_specdec.common.storage.atomic import replacing, temporary_folder, write_atomically

KILLED = """
import os, signal, sys
from pathlib import Path
from ianvs_specdec.common.storage.atomic import replacing, temporary_folder, write_atomically
path = Path(sys.argv[1])
with replacing(path) as file, temporary_folder(path) as folder:
    file.write_text("half")
    (folder / "part").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -9
    assert len(list(tmp_path.iterdir())) == 3, "the second has removed what the first one left"
    assert path.read_text() == "old"
    (tmp_path / f".file.json.{os.getppid()}.abc.tmp").write_text("of a process that lives")
    (tmp_path / ".other.json.99999999.abc.tmp").write_text("of another file")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [f".file.json.{os.getppid()}.abc.tmp", ".other.json.99999999.abc.tmp", "file.json"]
    )


def test_an_error_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with suppress(ValueError), replacing(path) as temporary:
        temporary.write_text("new")
        raise ValueError
    with suppress(ValueError), temporary_folder(path) as folder:
        (folder / "part").write_text("new")
        raise ValueError
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links and pipes")
def test_links_and_pipes_stay(tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "file.json", tmp_path / "link.json", tmp_path / "pipe"
    file.write_text("old")
    link.symlink_to(file)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert pipe.is_fifo()
