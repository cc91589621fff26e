"""Conditions of timings in the environment of a test case."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.edge import Start, edge, row
from tests.support.torch_path import BEST


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "target"), [("PromptLookup", BEST), ("huggingface", "transformers generate")])
def test_every_answer_has_its_target(job: Path, tiny_model: Path, backend: str, target: str) -> None:
    model = edge(tiny_model, backend=backend)
    answers = [model.predict(row(text)) for text in ("x", "y")]
    assert [answer["turns"][0]["trace"]["target"] for answer in answers] == [target, target]
    details = model.environment_details()
    assert (details["target"], details["answers"]) == (target, 2)
    assert details["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert details["threads"] == torch.get_num_threads()
    assert details["device"] == "cpu"
    model.cleanup()


def test_a_replay_reports_the_conditions_of_its_times(job: Path, tiny_model: Path, new_run: Start) -> None:
    first = edge(tiny_model)
    assert first.environment_details() == {}
    first.predict(row("x"))
    before = first.environment_details()
    new_run(fresh=False)
    again = edge(tiny_model)
    assert again.predict(row("x"))["replayed"]
    assert again.environment_details() == before
    assert again.predict(row("new"))["replayed"] is False
    assert again.environment_details()["answers"] == 2


def test_a_limit_of_instructions_is_reported(job: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = edge(tiny_model)
    model.predict(row("x"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    model.predict(row("y"))
    details = model.environment_details()
    assert [one.get("instructions_limit") for one in details] == [None, "AVX2"]
    assert [one["answers"] for one in details] == [1, 1]
