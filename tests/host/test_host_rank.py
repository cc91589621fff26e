"""The leaderboards over several runs: rows replaced, kept, sorted, renumbered."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from core.storymanager.table import print_table
from tests.host.host_job import EDGE, Job

SCORES = """
from sedna.common.class_factory import ClassFactory

for name in ("Accuracy", "Latency"):
    ClassFactory.register(alias=name)(lambda y_true, y_pred, name=name: y_pred[0][1][name])
"""

MODEL = """
def __init__(self, score=0.0, latency=0.0, fail=False):
    self.score, self.latency = score, latency
def predict(self, data):
    return {"Accuracy": float("nan") if self.score is None else self.score, "Latency": self.latency}
"""


def scored(job: Job, *points: tuple[float | None, float]) -> Job:
    """A job whose test cases have these values of Accuracy and Latency, one algorithm each."""
    job.define("algo/edge_model.py", "EdgeModel", MODEL)
    job.plugin("env/scores.py", SCORES)
    job.env["metrics"] = [{"name": name, "url": "env/scores.py"} for name in ("Accuracy", "Latency")]
    job.job["test_object"]["algorithms"] = []
    for i, (score, latency) in enumerate(points):
        modules = [dict(module) for module in job.modules]
        modules[0]["hyperparameters"] = [{"score": {"values": [score]}}, {"latency": {"values": [latency]}}]
        job.add_algorithm(f"a{i}", modules)
    return job


def order(job: Job) -> list[str]:
    rows = job.leaderboard()
    assert [row["rank"] for row in rows] == [str(i + 1) for i in range(len(rows))]
    return [row["algorithm"] for row in rows]


def test_sorted_by_several_metrics_undefined_last(job: Job) -> None:
    scored(job, (None, 1.0), (0.5, 2.0), (0.5, 1.0), (9.0, 3.0), (10.0, 3.0))
    job.job["rank"]["sort_by"] = [{"Accuracy": "descend"}, {"Latency": "ascend"}]
    assert job.run() == 0
    assert order(job) == ["a4", "a3", "a2", "a1", "a0"]
    assert job.leaderboard()[-1]["Accuracy"] == ""
    job.job["rank"]["sort_by"] = [{"Accuracy": "ascend"}]
    assert job.run() == 0
    assert order(job)[-1] == "a0", "undefined values come last in either direction"


def test_a_rerun_replaces_its_row_and_keeps_the_others(job: Job) -> None:
    scored(job, (1.0, 0.0), (2.0, 0.0))
    assert job.run() == 0
    before = {row["algorithm"]: row for row in job.leaderboard()}
    scored(job, (1.0, 0.0))
    assert job.run() == 0
    assert order(job) == ["a1", "a0"]
    after = {row["algorithm"]: row for row in job.leaderboard()}
    assert after["a1"] == before["a1"]
    assert after["a0"]["url"] == before["a0"]["url"]


def test_other_hyperparameters_metrics_and_columns_of_earlier_runs_are_kept(job: Job) -> None:
    scored(job, (1.0, 0.5))
    assert job.run() == 0
    job.env["metrics"] = [{"name": "Accuracy", "url": "env/scores.py"}]
    modules = [dict(module) for module in job.modules]
    modules[0]["hyperparameters"] = [{"score": {"values": [3.0]}}, {"fail": {"values": [False]}}]
    job.job["test_object"]["algorithms"] = []
    job.add_algorithm("b", modules)
    assert job.run() == 0
    new, old = job.leaderboard()
    assert list(new) == [
        "rank", "algorithm", "Accuracy", "Latency", "paradigm", "edgemodel", "cloudmodel", "hard_example_mining",
        "edgemodel-score", "edgemodel-fail", "edgemodel-latency", "time", "url",
    ]  # fmt: skip
    assert (new["algorithm"], new["Latency"], new["edgemodel-fail"]) == ("b", "", "False")
    assert [old[name] for name in ("algorithm", "Latency", "edgemodel-fail")] == ["a0", "0.5", ""]
    assert old["edgemodel-latency"] == "0.5"


def test_selected_only_writes_one_file_and_keeps_its_rows(job: Job) -> None:
    scored(job, (1.0, 0.0), (2.0, 0.0))
    job.job["rank"]["save_mode"] = "selected_only"
    job.job["rank"]["selected_dataitem"] = {"metrics": ["Accuracy"], "modules": ["edgemodel"]}
    assert job.run() == 0
    scored(job, (3.0, 0.0))
    assert job.run() == 0
    assert job.leaderboard() == []
    assert [row["Accuracy"] for row in job.leaderboard("selected")] == ["3.0", "2.0", "1.0"]
    assert list(job.leaderboard("selected")[0]) == [
        "rank", "algorithm", "Accuracy", "paradigm", "edgemodel", "edgemodel-score", "edgemodel-latency", "time", "url",
    ]  # fmt: skip


def test_of_rows_that_look_alike_one_is_shown(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, tag=["a", "b"], size=[1, 2])
    job.job["rank"]["selected_dataitem"] = {"hyperparameters": ["edgemodel-tag"], "metrics": ["Accuracy"]}
    assert job.run() == 0
    assert (len(job.leaderboard("all")), len(job.leaderboard("selected"))) == (4, 2)
    assert "rows differ in edgemodel-size: add them to selected_dataitem.hyperparameters" in capsys.readouterr().err
    job.job["rank"]["selected_dataitem"]["hyperparameters"].append("edgemodel-size")
    assert job.run() == 0
    assert "rows differ" not in capsys.readouterr().err


def test_the_table_holds_rows_of_this_jobs_test_cases_only(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, tag=["old"])
    assert job.run() == 0
    assert "not shown" not in capsys.readouterr().err
    job.hyperparameters(0, tag=["new"])
    assert job.run() == 0
    screen = capsys.readouterr()
    assert [row["edgemodel-tag"] for row in job.leaderboard("selected")] == ["new"]
    assert {row["edgemodel-tag"] for row in job.leaderboard()} == {"old", "new"}
    assert "new" in screen.out
    assert "old" not in screen.out
    told = [line for line in screen.err.splitlines() if "not shown" in line]
    assert told == [
        f"1 row of other configurations or data is kept in {os.path.join('workspace', 'job', 'rank', 'all_rank.csv')} "
        f"and not shown; to start over, delete or move {os.path.join('workspace', 'job')}"
    ]


def test_another_content_of_the_data_file_is_another_configuration(job: Job) -> None:
    assert job.run() == 0
    rows = [json.loads(line) for line in (job.folder / "data.jsonl").read_text().splitlines()]
    job.rows(rows[:4])
    assert job.run() == 0
    assert [len((job.case_folder(i) / "answers.jsonl").read_text().splitlines()) for i in (0, 1)] in ([4, 10], [10, 4])
    (shown,) = job.leaderboard("selected")
    assert len((job.folder / shown["url"] / "answers.jsonl").read_text().splitlines()) == 4
    job.rows([{**row, "answer": "B"} for row in rows[:4]])
    assert job.run() == 0
    assert len(job.leaderboard()) == 3, "as many rows, other labels"


def test_an_earlier_row_of_a_failed_case_is_not_shown(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    broken = job.folder / "broken"
    job.plugin(
        "algo/edge_model.py",
        "from pathlib import Path" + EDGE.replace('self.fail == "predict"', "self.tag in Path('broken').read_text()"),
    )
    job.hyperparameters(0, tag=["good", "bad"])
    broken.touch()
    assert job.run() == 0
    broken.write_text("bad")
    capsys.readouterr()
    assert job.run("--fresh") == 1
    screen = capsys.readouterr()
    assert "good" in screen.out
    assert "bad" not in screen.out
    assert "not in the table: 1 test case that failed now" in screen.err
    assert len(job.leaderboard()) == 2, "what was measured is kept"
    broken.write_text("good bad")
    assert job.run() == 1
    screen = capsys.readouterr()
    assert screen.out == ""
    assert "not in the table: 2 test cases that failed now" in screen.err


def test_no_cell_is_a_formula_and_it_is_the_same_after_many_runs(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        job.hyperparameters(0, tag=["=cmd()", "-1"])
        assert job.run() == 0
        assert "  =cmd()" in capsys.readouterr().out
        for which in ("all", "selected"):
            assert sorted(row["edgemodel-tag"] for row in job.leaderboard(which)) == ["'=cmd()", "-1"]


def test_the_id_of_a_test_case_depends_on_its_configuration_only(job: Job) -> None:
    job.hyperparameters(0, tag=["a"])
    assert job.run() == 0
    first = job.leaderboard()[0]["url"]
    os.rename("workspace/job", "workspace/old")
    assert job.run() == 0
    assert job.leaderboard()[0]["url"] == first
    for change in ({"hard_example_mining_mode": "inference-then-mining"}, {"dataset": {"test_data": "./data.jsonl"}}):
        job.env.update(change)
        assert job.run() == 0
    assert len({row["url"] for row in job.leaderboard()}) == 3
    configuration = json.loads((job.case_folder() / "environment.json").read_text())
    assert configuration["run"]["run_id"]


def test_the_table_is_aligned_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("rank,模型 name,Time to,url\n1,模型甲,0.000123456,a b\n2,\x1b[1mx,007,\n")
    assert capsys.readouterr().out.splitlines() == [
        "rank  模型    Time       url",
        "      name    to",
        "----  ------  ---------  ---",
        "1     模型甲  0.0001235  a b",
        "2     \x1b[1mx       007",
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="reads the peak memory from the resource module")
def test_fourteen_thousand_rows_stay_small(job: Job) -> None:
    """As many rows as MMLU's test set, one of them of 100 kB: the width of a row must not be that of all."""
    rows = [{"question": f"question {i} " + "word " * 80, "answer": "A"} for i in range(14_042)]
    rows[7]["question"] = "x" * 100_000
    job.rows(rows)
    # On Linux the peak of a process begins with the size of the one that started it, which is large after tests with
    # torch: hence a small process in between.
    inner = (
        "import resource, sys; from core.cmd.benchmarking import main; code = main(['-f', sys.argv[1]]); "
        "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}, *sys.argv[1:]], check=True)"
    done = subprocess.run([sys.executable, "-c", code, job.save()], capture_output=True, text=True, check=True)
    code_text, peak = done.stdout.splitlines()[-1].split()
    assert code_text == "0", done.stderr
    kilobytes = int(peak) / (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 250_000
    assert len((job.case_folder() / "answers.jsonl").read_text().splitlines()) == 14_042
