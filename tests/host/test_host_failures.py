"""What fails at run time: test cases do not take each other along, nothing that was made is lost, one message each."""

from __future__ import annotations

import errno
import json
import os

import pytest

from core.cmd.benchmarking import main
from core.common import files
from tests.host.host_job import Job


def test_a_failing_test_case_leaves_the_others_alone(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, fail=["load", "predict", ""])
    assert job.run() == 1
    (row,) = job.leaderboard()
    assert row["edgemodel-fail"] == ""
    error = capfd.readouterr().err
    assert "failed: loading edgemodel EdgeModel: OSError: no such model (algo/edge_model.py:15 in load)" in error
    assert "failed: row 1 of 10: RuntimeError: out of memory (algo/edge_model.py:20 in predict)" in error
    assert "2 of 3 test cases failed" in error
    assert "Traceback" not in error


def test_debug_shows_tracebacks_of_plugins_and_of_the_host(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, fail=["predict"])
    assert job.run("--debug") == 1
    assert 'raise RuntimeError("out of memory")' in capfd.readouterr().err
    job.job["workspce"] = "x"
    assert job.run("--debug") == 2
    assert "Traceback" in capfd.readouterr().err


def test_answers_before_a_failure_are_kept(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, fail=["predict"], at=[6])
    assert job.run() == 1
    error = capfd.readouterr().err
    assert "6 of 10 answers are kept in workspace" in error
    assert "failed: row 7 of 10: RuntimeError: out of memory" in error
    (partial,) = (job.folder / "workspace").rglob("*.partial.jsonl")
    assert [json.loads(line)["index"] for line in partial.read_text().splitlines()] == list(range(6))
    assert not job.leaderboard()


def test_a_finished_run_clears_the_partial_answers_of_earlier_ones(job: Job) -> None:
    assert job.run() == 0
    stale = job.case_folder() / "answers.1.partial.jsonl"
    stale.write_text("{}\n")
    os.utime(stale, (1, 1))
    assert job.run() == 0
    assert not stale.exists()


def test_a_cleanup_that_raises_costs_no_result(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, fail=["cleanup"])
    job.modules[2]["name"] = "Longer"
    assert job.run() == 1
    captured = capfd.readouterr()
    assert "failed: cleanup of edgemodel EdgeModel: ValueError: already closed (algo/edge_model.py:25" in captured.err
    assert "router cleaned up" in captured.out, "the other modules must still be cleaned up"
    assert len(job.leaderboard()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Broken", "metric Broken: ZeroDivisionError: division by zero (env/metrics.py:20 in broken)"),
        ("Several", "metric Several: TypeError: a metric must return one number, 'Several' returned list"),
    ],
)
def test_a_metric_that_fails_leaves_its_cell_empty(
    job: Job, capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    job.env["metrics"].append({"name": name, "url": "env/metrics.py"})
    assert job.run() == 1
    (row,) = job.leaderboard()
    assert (row["Accuracy"], row[name]) == ("50.0", "")
    assert message in capfd.readouterr().err.replace("\\", "/")


def test_metrics_that_fail_alike_are_told_in_one_line(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    names = [f"M{i}" for i in range(9)]
    job.plugin(
        "env/judged.py",
        f"""
        from sedna.common.class_factory import ClassFactory, ClassType
        class UserError(Exception):
            key = None
        def metric(y_true, y_pred):
            raise UserError("the judge is silent")
        for name in {names}:
            ClassFactory.register(ClassType.GENERAL, alias=name)(metric)
        """,
    )
    job.env["metrics"] += [{"name": name, "url": "env/judged.py"} for name in names]
    job.env["metrics"].append({"name": "Broken", "url": "env/metrics.py"})
    assert job.run() == 1
    told = [line.partition("failed: ")[2] for line in capfd.readouterr().err.splitlines() if "failed: metric" in line]
    assert told[0] == "metrics M0, M1, M2, M3, M4, M5 and 3 more: the judge is silent"
    assert told[1].startswith("metric Broken: ZeroDivisionError")
    assert len(told) == 2


def test_the_original_error_of_a_chain_is_told(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    def inference(self, data, **kwargs):
        try:
            raise ConnectionError("503 from the server")
        except Exception as error:
            raise RuntimeError("Inference failed.") from error
    """
    job.define("algo/cloud_model.py", "CloudModel", body)
    job.modules[2]["name"] = "CloudOnly"
    assert job.run() == 1
    told = "Inference failed. - caused by ConnectionError: 503 from the server (algo/cloud_model.py:6 in inference)"
    assert f"RuntimeError: {told}" in capfd.readouterr().err


def test_a_router_that_raises_or_decides_nothing(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    def __init__(self, when=""):
        if when == "init":
            raise ValueError("no threshold")
    def __call__(self, data=None):
        raise KeyError("score")
    """
    job.define("algo/none.py", "Undecided", "def __call__(self, data=None): ...", "HEM")
    job.add_algorithm("second", [*job.modules[:2], {**job.modules[2], "name": "Undecided", "url": "algo/none.py"}])
    job.define("algo/bad.py", "Bad", body, "HEM")
    job.modules[2].update(name="Bad", url="algo/bad.py")
    job.hyperparameters(2, when=["init", "call"])
    assert job.run() == 1
    error = capfd.readouterr().err
    assert "building hard_example_mining Bad: ValueError: no threshold" in error
    assert "row 1 of 10: KeyError: 'score'" in error
    assert "row 1 of 10: TypeError: router Undecided returned None, not True (to the cloud) or False" in error


@pytest.mark.parametrize("place", ["workspace", "workspace/job/routing"])
def test_an_unwritable_workspace_is_told_first(job: Job, capfd: pytest.CaptureFixture[str], place: str) -> None:
    assert main(["check", "-f", job.save()]) == 0
    assert not (job.folder / "workspace").exists(), "checking makes nothing"
    (job.folder / place).parent.mkdir(parents=True, exist_ok=True)
    (job.folder / place).write_text("a file is in the way")
    for command in (["check"], []):
        capfd.readouterr()
        assert main([*command, "-f", job.save()]) == 1
        screen = capfd.readouterr()
        assert "ianvs: cannot write workspace" in screen.err
        assert "name another workspace in the job file" in screen.err
        assert "[1/1]" not in screen.err
        assert "is valid" not in screen.out


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_leaderboard_that_cannot_be_written_keeps_the_old_one(
    job: Job, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    assert job.run() == 0
    before = job.leaderboard()
    folder = job.case_folder()
    job.hyperparameters(0, tag=["other"])

    def full(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", full)
    assert job.run() == 1
    error = capfd.readouterr().err
    assert "ianvs: cannot write " in error
    assert "then run the same command again" in error
    assert ("free some space" in error) == (code == errno.ENOSPC)
    assert "Traceback" not in error
    assert job.leaderboard() == before
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 10
    assert not list((job.folder / "workspace").rglob("*.tmp"))


def test_a_leaderboard_that_is_none(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    rank = job.folder / "workspace" / "job" / "rank"
    rank.mkdir(parents=True)
    (rank / "all_rank.csv").write_text("my,own,table\n1,2,3\n")
    assert job.run() == 1
    assert "is not a leaderboard of Ianvs: move it" in capfd.readouterr().err
    assert (rank / "all_rank.csv").read_text() == "my,own,table\n1,2,3\n"


def test_a_plugin_that_calls_exit_ends_its_test_case_only(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    def __init__(self, give_up):
        self.give_up = give_up
    def predict(self, data):
        if self.give_up:
            raise SystemExit("no accelerator")
        return {"prediction": "A"}
    """
    job.define("algo/edge_model.py", "EdgeModel", body)
    job.hyperparameters(0, give_up=[True, False])
    assert job.run() == 1
    assert "row 1 of 10: SystemExit: no accelerator" in capfd.readouterr().err
    assert len(job.leaderboard()) == 1
