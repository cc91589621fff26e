"""What is held in memory: each weight once, however many hold it, and copies in another layout besides."""

from __future__ import annotations


def test_held_counts_every_storage_once_and_nothing_apart():
    import numpy as np
    import torch

    from ianvs_specdec.decoding.memory import held

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
