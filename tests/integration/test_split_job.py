"""``benchmarkingjob_split.yaml``: its columns, and the end of its processes."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from tests.support.harness import LONGEST, Run, Workplace, questions
from tests.support.paths import EXAMPLE

JOB = f"examples/{EXAMPLE.name}/benchmarkingjob_split.yaml"
MARK = "SPLIT_JOB_OF_A_TEST"
"""An environment variable by whose value what a job started is found."""
LINK = {"delay": "1ms"}
COLUMNS = ("Rounds per Answer", "Cloud Busy Time", "Break-Even Round Trip", "Bandwidth Up")

pytestmark = pytest.mark.slow


class Job:
    """The shipped job with small models, few questions, and one value for each hyperparameter of the cloud."""

    def __init__(self, workplace: Workplace, models: tuple[Path, Path]) -> None:
        self._workplace, self.mark = workplace, uuid.uuid4().hex
        shutil.copy(EXAMPLE / "benchmarkingjob_split.yaml", workplace.example)
        folder = workplace.example / "testalgorithms" / "split-decoding"
        edge, cloud = models
        draft = {"method": "draft_model", "draft": str(cloud), "mode": "split", "length": "fixed:3"}
        self._change(folder / "cloud_stream.yaml", beside=[{"backend": "autoregressive"}], link=[LINK])
        self._change(folder / "split.yaml", edge=[draft], link=[LINK])
        settings = folder / "cloud_settings.yaml"
        settings.write_text(yaml.safe_dump({**yaml.safe_load(settings.read_text()), "model": str(cloud)}))
        workplace.settings("edge", model=str(edge))
        data = workplace.root / "questions.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in questions(3)))
        environment = workplace.example / "testenv" / "testenv_split.yaml"
        described = yaml.safe_load(environment.read_text())
        described["testenv"]["dataset"] = {"train_data": str(data), "test_data": str(data)}
        environment.write_text(yaml.safe_dump(described))

    def _change(self, file: Path, **values: list[Any]) -> None:
        described = yaml.safe_load(file.read_text())
        (cloud,) = (one for one in described["algorithm"]["modules"] if one["type"] == "cloudmodel")
        for hyperparameter in cloud["hyperparameters"]:
            for name in hyperparameter.keys() & values.keys():
                hyperparameter[name]["values"] = values[name]
        file.write_text(yaml.safe_dump(described))

    def start(self) -> Run:
        environment = {**self._workplace.environment, MARK: self.mark}
        return Run(self._workplace.root, ["-f", JOB], environment)

    def servers(self) -> set[str]:
        """The subcommands of all verifiers and links that it started and that are there. A process that a server is
        about to start has the server's command line, so they are not counted."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return {line.split(" -m ianvs_specdec ")[1].split()[0] for line in found if " -m ianvs_specdec " in line}

    def leaderboard(self) -> list[dict[str, str]]:
        path = self._workplace.root / "workspace" / "cloud-edge-split-decoding" / "rank" / "all_rank.csv"
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


def test_a_stopped_job_stops_its_servers(workplace: Workplace, models: tuple[Path, Path]) -> None:
    job = Job(workplace, models)
    run = job.start()
    run.wait_for(lambda: job.servers() == {"verifier", "link"})
    assert job.servers() == {"verifier", "link"}, run.stderr
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(LONGEST) != 0
    deadline = time.monotonic() + LONGEST
    while job.servers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.servers() == set()

    outcome = job.start().wait()
    assert outcome.code == 0, outcome.output
    assert job.servers() == set()
    rows = {row["algorithm"]: row for row in job.leaderboard()}
    assert rows.keys() == {"cloud-stream", "split", "edge-alone"}
    assert {row["Lossless"] for row in rows.values()} == {"100.0"}
    assert {name for name in COLUMNS if rows["edge-alone"][name]} == set()
    assert {name for name in COLUMNS if rows["cloud-stream"][name]} == {COLUMNS[0], "Cloud Busy Time", "Bandwidth Up"}
    assert {name for name in COLUMNS if rows["split"][name]} == set(COLUMNS)
    assert float(rows["split"]["Rounds per Answer"]) > 1 > float(rows["cloud-stream"]["Rounds per Answer"]) == 0
    assert float(rows["cloud-stream"]["Speedup"]) == 1.0
    assert float(rows["split"]["Speedup"]) > 0
    assert float(rows["split"]["Cloud Busy Time"]) > 0
