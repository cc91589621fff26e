"""guidellm itself against ``specdec serve`` itself: what the stand-in of the other tests stands for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.load import sweep
from ianvs_specdec.load.generator import POLL_SECONDS, environment_of
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.rounds import RoundKey, folder_of
from tests.support.models import build_model

pytest.importorskip("guidellm", reason="needs the extra load: pip install 'ianvs-specdec[load]'")
pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    file = folder / "cloud.yaml"
    file.write_text(f"model: {build_model(folder / 'tiny')}\nbackend: PromptLookup\nthreads: 1\n")
    return file


def plan_of(settings: Path, data: Path, **more: object) -> SweepPlan:
    given = {"settings": str(settings), "data": str(data), "policies": "fixed:0,fixed:3", "rates": "4", "duration": 3}
    return SweepPlan.parse(given | {"max_tokens": 16, "slo": "latency=60"} | more)


def left_out(row: Mapping[str, Any]) -> int:
    """The requests that guidellm's report left out: now and then it is one of a round."""
    assert row["unreported"] <= 1
    return int(row["unreported"])


def test_guidellm_reads_environment() -> None:
    """By another name they would be passed over without a word."""
    asked = "from guidellm.settings import settings as s; print(s.max_worker_processes, s.mp_poll_interval)"
    environment = environment_of("http://127.0.0.1:1", "")
    told = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["1", str(POLL_SECONDS)]


def test_two_policies(settings: Path, data: Path, tmp_path: Path) -> None:
    plain, drafted = sweep.run(plan_of(settings, data), tmp_path / "out")
    lines = (tmp_path / "out/rounds/arrivals-4.jsonl").read_text().splitlines()
    for row in (plain, drafted):
        assert (row["completed"] + left_out(row), row["failed"], row["refused"]) == (len(lines), 0, 0)
        assert row["latency"]["p50"] >= row["ttft"]["p50"] > 0
        assert row["slo_goodput"] == pytest.approx(row["completed"] / 3, abs=1e-6)
        assert row["client_cpu_seconds_total"] > 0
    assert (plain["draft_length"], plain["mean_accepted_tokens"]) == (0.0, 1.0)
    assert 0 < drafted["draft_length"] <= 3
    assert drafted["work_amplification"] > 1
    assert drafted["lossless"]["compared"] == drafted["lossless"]["same"]
    both = len(lines) - left_out(plain) - left_out(drafted), min(plain["completed"], drafted["completed"])
    assert both[0] <= drafted["lossless"]["compared"] <= both[1]
    place = folder_of(tmp_path / "out", RoundKey(4.0, "fixed:3"))
    asked = [
        json.loads(request["request_args"])["body"]
        for request in json.loads((place / "report.json").read_text())["benchmarks"][0]["requests"]["successful"]
    ]
    assert {(body["max_completion_tokens"], body["temperature"], "ignore_eos" in body) for body in asked} == {
        (16, 0, False)
    }


def test_guidellm_controls_answer_length(tmp_path: Path) -> None:
    """It asks for ``ignore_eos`` then. The model would end each answer after a few tokens."""
    from tests.serving.conftest import serving
    from tests.serving.test_completions import build_ending

    model = build_ending(tmp_path / "ending")
    with serving(tmp_path, "--model", str(model), "--backend", "PromptLookup") as server:
        command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
        command += ["--backend", f"kind=openai_http,target=http://{server.address},model=ending"]
        command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"]
        command += ["--tokenizer", f"kind=huggingface_auto,model={model}"]
        command += ["--data", "kind=synthetic_text,prompt_tokens=12,output_tokens=48"]
        command += ["--output", f"kind=json,path={tmp_path / 'report.json'}"]
        subprocess.run(command, env=environment_of(server.url, ""), cwd=tmp_path, check=True)
        assert server.metrics()["completion_tokens_total"] == 48 * server.metrics()["requests_total.completed"]
    requests = json.loads((tmp_path / "report.json").read_text())["benchmarks"][0]["requests"]
    assert not requests["errored"]
    assert {request["output_metrics"]["text_tokens"] for request in requests["successful"]} == {48}
    assert len(requests["successful"]) >= 5


def test_guidellm_reports_refusals(settings: Path, data: Path, tmp_path: Path) -> None:
    plan = plan_of(settings, data, policies="fixed:0", concurrency=1, queue=0, rates="60", max_tokens=256, duration=2)
    (row,) = sweep.run(plan, tmp_path / "out")
    assert row["refused"] > 0
    assert row["failed"] == 0
    assert row["completed"] + row["refused"] + left_out(row) == row["requests"]
