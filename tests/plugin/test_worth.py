"""Drafts that are not worth their time are told in a line."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from tests.support.damage import with_weights
from tests.support.edge import edge, row
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"
SLOW = """
import time
from ianvs_specdec.engine import Context, Drafter, TokenTree


class Slow(Drafter):
    def propose(self, context: Context, budget: int) -> TokenTree:
        time.sleep(0.05)
        return TokenTree.chain(context.tokens[-1], [3])
"""


def questions(count: int) -> list[str]:
    rows = (EXAMPLE / "dataset" / "knowledge" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [json.loads(line)["question"]["turns"][0] for line in rows]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("answer_warnings")]


@pytest.mark.slow
def test_a_head_that_guesses_nothing_is_told_once(job: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(0)
        for name, weights in tensors.items():
            tensors[name] = torch.randn_like(weights)

    caplog.set_level(logging.WARNING)
    for head in (MODELS / "cloud-eagle", with_weights(MODELS / "cloud-eagle", tmp_path / "head", spoil)):
        model = edge(MODELS / "cloud", backend="EagleSpecDec", head=str(head), max_tokens=32)
        for text in questions(16):
            model.predict(row(text))
        model.cleanup()
    (told,) = warnings(caplog)
    assert "edge model: almost no drafts of the head are accepted" in told


@pytest.mark.slow
def test_a_method_that_is_far_slower_is_told_once(
    job: Path, tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    caplog.set_level(logging.WARNING)
    for options in ({"backend": "autoregressive"}, {"backend": "SpecDec", "drafter": f"{tmp_path}/slow.py:Slow"}):
        model = edge(tiny_model, **options)
        for text in ("x", "y", "z", "ab"):
            model.predict(row(text))
        model.cleanup()
    (told,) = warnings(caplog)
    assert "SpecDec is slower than plain decoding" in told
