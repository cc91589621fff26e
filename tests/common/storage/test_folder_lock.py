"""One run at a time in a folder: another one is told who is there, and a killed one is there no more."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage import folder_lock as module
from ianvs_specdec.common.storage.folder_lock import HOLDER, lock_folder
from tests.support.locked_folder import HOLDING, locked_folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)


def test_a_second_run_is_told_which_process_is_there_until_that_is_killed(tmp_path: Path) -> None:
    with locked_folder(tmp_path) as process:
        with pytest.raises(UserError) as told:
            lock_folder(tmp_path, "ours")
        for part in (f"process {process.pid} on ", "since 20", "wait until it has ended", f"kill {process.pid}"):
            assert part in str(told.value)
        assert lock_folder(tmp_path, "theirs"), "a process of the same run shares it"
        process.kill()
        process.wait()
        assert lock_folder(tmp_path, "ours")


@pytest.mark.parametrize("text", ["", "[]", '{"pid": "x"}', "[" * 100_000])
def test_a_damaged_account_of_the_holder_is_no_error(tmp_path: Path, text: str) -> None:
    with locked_folder(tmp_path):
        (tmp_path / HOLDER).write_text(text)
        with pytest.raises(UserError, match="in use by another run: wait"):
            lock_folder(tmp_path, "ours")


def test_a_claim_ends_with_its_last_holder(tmp_path: Path) -> None:
    first = lock_folder(tmp_path, "ours")
    second = lock_folder(tmp_path, "another run of this process")
    assert second is first
    del first, second
    gc.collect()
    with locked_folder(tmp_path) as process:
        assert process.poll() is None


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_a_child_of_the_run_shares_it(tmp_path: Path) -> None:
    kept = lock_folder(tmp_path, "ours")
    code = HOLDING.replace("theirs", "ours")
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], input=b"", capture_output=True)
    assert child.stdout == b"held\n", child.stderr
    assert kept
