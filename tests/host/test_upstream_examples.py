"""Jobs in the form of upstream's examples run unmodified on this host."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from core.cmd.benchmarking import main
from tests.host.upstream_decoding import DECODING, write_decoding_example
from tests.host.upstream_routing import write_routing_example


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples change ``sys.path`` and ``sys.modules``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_cloud_edge_llm_example(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = write_routing_example(tmp_path)
    assert main(["check", "-f", job]) == 0
    lines = capfd.readouterr().err.splitlines()
    (line,) = [one for one in lines if one.startswith("ianvs: ")]
    assert "benchmarkingjob.yaml:5: hard_example_mining_mode has no effect here" in line
    assert main(["-f", job]) == 0
    found = rows("workspace-gpqa/benchmarkingjob/rank/selected_rank.csv")
    assert [(row["edgemodel-backend"], row["Accuracy"], row["Edge Ratio"]) for row in found] == [
        ("huggingface", "75.0", "75.0"),
        ("vllm", "75.0", "75.0"),
    ]
    assert list(found[0]) == [
        *("rank", "algorithm", "Accuracy", "Edge Ratio", "paradigm", "hard_example_mining"),
        *("edgemodel-model", "edgemodel-backend", "cloudmodel-model", "time", "url"),
    ]


def test_the_speculative_decoding_example(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = write_decoding_example(tmp_path)
    assert main(["check", "-f", job]) == 0
    assert "warning" not in capfd.readouterr().err
    assert main(["-f", job]) == 0
    found = rows("workspace-specdec/specdec/rank/selected_rank.csv")
    expected = [["1", "cloud-only", "0"], ["2", "edge-only", "2"], ["3", "collaboration", "6"]]
    assert [list(row.values()) for row in found] == expected
    assert list(found[0]) == ["rank", "drafter-inference_mode", "Rounds"]
    for row in rows("workspace-specdec/specdec/rank/all_rank.csv"):
        first = json.loads(Path(row["url"], "answers.jsonl").read_text().splitlines()[0])
        asked = [side for side in ("edge", "cloud") if first[side] is not None]
        assert asked == [row["drafter-inference_mode"].removesuffix("-only")] * (row["Rounds"] != "6")
        assert (first["is_hard"], first["result"]["completion"]) == (False, "QUESTIONS")


def test_a_session_without_progress_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = write_decoding_example(tmp_path)
    verifier = tmp_path / DECODING / "testalgorithms" / "ar" / "verifier.py"
    verifier.write_text(verifier.read_text().replace('"stop": stop, "progress": bool', '"progress": not bool'))
    assert main(["-f", job]) == 1
    assert "made no progress" in capfd.readouterr().err
