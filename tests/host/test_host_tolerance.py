"""What upstream Ianvs tolerates is a warning here; what is probably a typo stays a fault, and is told once."""

# ruff: noqa: E501 - the table below reads best with one case per line

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import Job

Change = Callable[[Job], Any]


TOLERATED: list[tuple[str, Change, str, str, str]] = [
    ("mode in the job", lambda j: j.job.update(hard_example_mining_mode="self-design"), "job.yaml", "hard_example_mining_mode:", "set it in the testenv file. The mode of this job is mining-then-inference"),
    ("key of the job", lambda j: j.job.update(description="mine"), "job.yaml", "description:", "unknown key in benchmarkingjob, which has no effect: 'description'"),
    ("key of a metric", lambda j: j.env["metrics"][0].update(unit="%"), "testenv.yaml", "unit:", "unknown key in metrics item 1"),
    ("no sort_by", lambda j: j.job["rank"].pop("sort_by") and j.job["rank"].update(save_mode="selected_and_all"), "job.yaml", "rank:", "sort_by is missing"),
    ("sort_by an unknown metric", lambda j: j.job["rank"]["sort_by"].append({"Latency": "ascend"}), "job.yaml", "Latency:", "'Latency', which is not on the leaderboard"),
    ("sort_by a metric of the same words", lambda j: j.env["metrics"].pop(0) and j.job["rank"].update(sort_by=[{"Cloud Ratio": "ascend"}]), "job.yaml", "Cloud Ratio:", "which is not on the leaderboard"),
    ("visualization", lambda j: j.job["rank"].update(visualization={"mode": "all", "method": "print_table"}), "job.yaml", "mode:", "the mode 'all' is unknown"),
    ("selected metric", lambda j: j.job["rank"].update(selected_dataitem={"metrics": ["Accuracy", "Cloud Cost"]}), "job.yaml", "- Cloud Cost", "Its column is empty"),
    ("selected hyperparameter", lambda j: (j.hyperparameters(0, model=["a"]), j.job["rank"].update(selected_dataitem={"hyperparameters": ["edgemodel-model", "cloudmodel-model"]})), "job.yaml", "- cloudmodel-model", "Its column is empty"),
    ("value twice", lambda j: j.hyperparameters(0, seed=[1, 2, 1]), "algorithm.yaml", "values:", "a value of seed is a duplicate: it runs once"),
    ("metric twice", lambda j: j.env["metrics"].append(dict(j.env["metrics"][0])), "testenv.yaml", "- name: Accuracy", "is a duplicate: it is computed once"),
    ("metric without url", lambda j: j.env["metrics"][0].pop("url"), "testenv.yaml", "- name: Accuracy", "'Accuracy' is taken from env/metrics.py"),
    ("metric of another paradigm", lambda j: j.env["metrics"].append({"name": "samples_transfer_ratio"}), "testenv.yaml", "- name: samples_transfer_ratio", "belongs to another paradigm"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "file", "text", "message"), [t[1:] for t in TOLERATED], ids=[t[0] for t in TOLERATED]
)
def test_what_upstream_tolerates_is_a_warning(
    job: Job, capfd: pytest.CaptureFixture[str], change: Change, file: str, text: str, message: str
) -> None:
    change(job)
    told = [line for line in job.checked(capfd) if message in line]
    assert len(told) == 1
    lines = (job.folder / file).read_text().splitlines()
    assert any(told[0].startswith(f"ianvs: warning: {file}:{i}: ") for i, line in enumerate(lines, 1) if text in line)
    assert job.run() == 0
    assert len(job.leaderboard()) in (1, 2)


def test_top_level_keys_are_warnings_or_not_indented(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.save()
    text = Path("job.yaml").read_text()
    Path("job.yaml").write_text(text + "x-defaults: {a: 1}\n")
    assert main(["check", "-f", "job.yaml"]) == 0
    assert "unknown key 'x-defaults' next to 'benchmarkingjob': it has no effect" in capfd.readouterr().err
    Path("job.yaml").write_text(text + "workspce: x\n")
    assert main(["check", "-f", "job.yaml"]) == 2
    assert "unknown key 'workspce' next to 'benchmarkingjob'; indent it" in capfd.readouterr().err


def test_a_metric_without_url_that_no_file_defines(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.env["metrics"].append({"name": "Latency"})
    assert "the file of the metric 'Latency'" in "\n".join(job.checked(capfd, 2))


@pytest.mark.parametrize(
    ("names", "save_mode"),
    [(("edgemodel-seed", "algorithm"), "selected_and_all"), (("url", "algorithm"), "selected_only")],
)
def test_selected_output_columns(
    job: Job, capfd: pytest.CaptureFixture[str], names: tuple[str, ...], save_mode: str
) -> None:
    job.hyperparameters(0, seed=[1, 2])
    job.job["rank"].update(selected_output_columns=list(names), save_mode=save_mode)
    for _ in range(2):
        assert job.run() == 0
        heading = " ".join(capfd.readouterr().out.split("----")[0].split())
        assert set(heading.split()) == {"rank", *" ".join(names).split()}
    rows = job.leaderboard("selected")
    assert [tuple(row) for row in rows] == [("rank", *names)] * 2
    assert len(job.leaderboard()) == (2 if save_mode == "selected_and_all" else 0)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["Acuracy"], "'Acuracy', which is not a column of the selected leaderboard. Did you mean 'Accuracy'?"),
        (["Edge Ratio", "Edge Ratio"], "names 'Edge Ratio' twice"),
        (["rank"], "rank is always the first column"),
        ([3], "names 3, which is not a column"),
    ],
)
def test_wrong_output_columns(job: Job, capfd: pytest.CaptureFixture[str], names: list[Any], message: str) -> None:
    job.job["rank"]["selected_output_columns"] = names
    assert message in "\n".join(job.checked(capfd, 2))


def test_rows_are_sorted_by_any_column_and_by_a_bare_name(job: Job) -> None:
    job.hyperparameters(0, tag=["b", "c", "a"])
    job.job["rank"]["sort_by"] = ["Accuracy", {"edgemodel-tag": "descend"}]
    assert job.run() == 0
    assert [row["edgemodel-tag"] for row in job.leaderboard()] == ["c", "b", "a"]


FOLLOW_UPS: list[tuple[str, Change, str]] = [
    ("metric misspelt in the testenv", lambda j: j.env["metrics"][0].update(name="Acuracy"), "testenv.yaml"),
    ("wrong path of the testenv", lambda j: j.job.update(testenv="nowhere.yaml"), "job.yaml"),
    ("metrics misspelt", lambda j: j.env.update(metrisc=j.env.pop("metrics")), "testenv.yaml"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "file"), [f[1:] for f in FOLLOW_UPS], ids=[f[0] for f in FOLLOW_UPS])
def test_one_mistake_is_told_once_and_where_it_is(
    job: Job, capfd: pytest.CaptureFixture[str], change: Change, file: str
) -> None:
    job.hyperparameters(0, seed=[1])
    job.job["rank"]["selected_dataitem"] = {
        "paradigms": ["all"], "modules": ["edgemodel"], "hyperparameters": ["edgemodel-seed"],
        "metrics": ["Accuracy", "Edge Ratio"],
    }  # fmt: skip
    job.job["rank"]["selected_output_columns"] = ["Accuracy", "edgemodel-seed"]
    change(job)
    (line,) = job.checked(capfd, 2)
    assert line.startswith(f"ianvs: {file}:")
    assert "Did you mean 'Acuracy'" not in line


def test_a_folder_in_place_of_a_job_file(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.save()
    assert main(["-f", "."]) == 2
    assert "ianvs: . is a folder, but -f needs the YAML file of a job: ./job.yaml" in capfd.readouterr().err
    assert main(["-f", "jbo.yaml"]) == 2
    assert "job file not found: jbo.yaml. Did you mean 'job.yaml'?" in capfd.readouterr().err


def test_a_hint_is_given_only_for_what_is_near(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.algorithm["paradigm_type"] = "streaming"
    (line,) = job.checked(capfd, 2)
    assert "Did you mean" not in line
