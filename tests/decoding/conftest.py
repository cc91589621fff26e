"""The reference fixtures, where they are present."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference fixtures."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("SPECDEC_SHARED", root.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no reference fixtures: {folder} is not there (set SPECDEC_SHARED)")
    return folder


@pytest.fixture(scope="session")
def reference_model(shared):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(shared / "reference" / "target", dtype=torch.float32)


@pytest.fixture(scope="session")
def mt_bench(shared) -> list[dict]:
    with open(shared / "data" / "mt_bench" / "question.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
