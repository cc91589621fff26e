"""What is held in memory: each weight once, however many hold it, and copies in another layout besides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ianvs_specdec.engine import memory


def test_held_counts_every_storage_once_and_nothing_apart():
    import numpy as np
    import torch

    from ianvs_specdec.engine.memory import held

    class Holder:
        __slots__ = ("inside", "other")

    shared = torch.zeros(100)
    module = torch.nn.Linear(10, 10)
    holder = Holder()
    holder.inside, holder.other = {"views": [shared[:10], shared[50:]]}, (np.zeros(25, np.float32)[:5], [1, 2, 3])
    assert held(holder) == 400 + 100
    assert held(holder, shared) == 500
    assert held(holder, module.forward) == 500 + 440
    assert held(holder, module, apart=[module]) == 500
    packed = (
        torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16), 8)
        if torch.backends.mkldnn.is_available()
        else None
    )
    assert held([packed]) == (0 if packed is None else 1024)


@pytest.mark.parametrize(
    ("limit", "used", "files", "free"),
    [(1000, 400, 0, 600), (1000, 900, 300, 400), (1000, 1200, 100, 0), ("max", 900, 0, None)],
)
def test_what_a_container_has_left_is_for_the_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | str, used: int, files: int, free: int | None
) -> None:
    """Pages of files are given up where memory is needed."""
    for name, text in (
        ("memory.max", f"{limit}\n"),
        ("memory.current", f"{used}\n"),
        ("memory.stat", f"anon {used - files}\ninactive_file {files}\n"),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_MEMORY_GROUP", tmp_path)
    found = memory.for_sequences(torch.device("cpu"))
    if found is None:
        pytest.skip("this system does not tell what is free")
    assert found > 10**6 if free is None else found == free * memory.SHARE_FOR_SEQUENCES
