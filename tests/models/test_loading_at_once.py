"""Models that are loaded by several threads at the same time are whole, each of its own dtype."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ianvs_specdec.models import loading
from tests.support.tiny import tiny_model


def test_models_that_are_loaded_at_the_same_time_are_whole(tmp_path: Path) -> None:
    kinds = {"tied": (True, torch.float32), "half": (False, torch.bfloat16)}
    for name, (tied, dtype) in kinds.items():
        tiny_model(tie_word_embeddings=tied).to(dtype).save_pretrained(tmp_path / name)

    def loaded(name: str) -> tuple[bool, torch.dtype]:
        model = loading.load(loading.CAUSAL, tmp_path / name, what=name, dtype="auto")
        return model.lm_head.weight is model.model.embed_tokens.weight, model.dtype

    names = [*kinds] * 5
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(loaded, names)) == [kinds[name] for name in names]
