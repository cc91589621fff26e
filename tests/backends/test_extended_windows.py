"""A window that its scaling of positions extends, in every spelling, and drafts beyond the original one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.models.gguf.architecture import architecture
from ianvs_specdec.models.headers import headers
from tests.support.folders import change, random_model

QUESTIONS = ["the cat sat on the mat and the cat sat on " * times for times in (6, 3, 1)]
ORIGINAL: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 64}


def answers(folder: Path, name: str) -> list[list[int]]:
    with backend(name)(str(folder)) as llm:
        return [
            llm.generate([{"role": "user", "content": text}], Sampling(max_tokens=100)).token_ids for text in QUESTIONS
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stated", "rope"),
    [
        (64, {"rope_scaling": {"type": "yarn", **ORIGINAL}, "rope_theta": 500.0}),
        (256, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, **ORIGINAL}}),
        (64, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 500.0}),
        (64, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}}),
    ],
)
def test_the_window_is_the_extended_one(tmp_path: Path, stated: int, rope: dict[str, Any]) -> None:
    random_model(tmp_path, max_position_embeddings=stated)
    change(tmp_path, "config.json", lambda config: config.pop("rope_parameters") and config.update(rope))
    plain = answers(tmp_path, "huggingface")
    assert all(len(ids) > 60 for ids in plain)
    for name in ("autoregressive", "RecyclingSpecDec"):
        assert answers(tmp_path, name) == plain
    if "dynamic" not in str(rope):
        import json

        config = json.loads((tmp_path / "config.json").read_text())
        shapes = {name: header.shape for name, header in headers(tmp_path).items()}
        assert architecture(config, shapes).metadata["context_length"] == 256
