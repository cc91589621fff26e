"""Digests of files are remembered, so that each process does not read a model again."""

from __future__ import annotations

import os
from pathlib import Path

from ianvs_specdec.records.identity import FileDigests


def test_digests_of_files_are_cached_across_processes(tmp_path: Path) -> None:
    file, memory = tmp_path / "model.gguf", tmp_path / "digests.json"
    file.write_bytes(b"GGUF")
    known, written = FileDigests(memory).file(file), file.stat().st_mtime_ns
    file.write_bytes(b"GGML")
    os.utime(file, ns=(written, written))
    assert FileDigests(memory).file(file) == known != FileDigests(None).file(file)
