"""A folder that another process has locked, as a run does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLDING = """
import sys
from pathlib import Path
from ianvs_specdec.common.storage.folder_lock import lock_folder
held = lock_folder(Path(sys.argv[1]), "theirs")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_folder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDING, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()
