"""A file that no machine can hold or follow is refused at once, in one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import Job

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{','.join(['*' + before] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

ABSURD = [
    ("aliases of aliases", BOMB, "more than 5000 entries, with what its aliases stand for"),
    ("merged aliases", MERGED, "more than 5000 entries, with what its aliases stand for"),
    ("many keys", "benchmarkingjob:\n" + "".join(f"  key{i}: 1\n" for i in range(200_000)), "larger than 1 MiB"),
    ("fewer keys", "benchmarkingjob:\n" + "".join(f"  key{i}: 1\n" for i in range(20_000)), "more than 5000 entries"),
    ("unknown keys", "benchmarkingjob:\n" + "".join(f"  key{i}: 1\n" for i in range(2_000)), "2000 unknown keys in"),
    ("brackets", "benchmarkingjob: " + "[" * 5_000 + "]" * 5_000, "nested more than 50 levels deep"),
    ("open brackets", "benchmarkingjob: " + "[" * 200_000, "nested more than 50 levels deep"),
    ("braces", "benchmarkingjob: " + "{a: " * 5_000 + "}" * 5_000, "nested more than 50 levels deep"),
    ("dashes", "- " * 100_000, "nested more than 50 levels deep"),
    ("indents", "".join(" " * i + "a:\n" for i in range(200)), "nested more than 50 levels deep"),
    ("long text", "benchmarkingjob: '" + "x" * 2_000_000 + "'", "larger than 1 MiB"),
    ("sexagesimal", "benchmarkingjob: " + "1:" * 400_000 + "1", "a value without quotes of more than 4000 characters"),
    ("digits", "benchmarkingjob: " + "9" * 400_000, "a value without quotes of more than 4000 characters"),
    ("a list as a key", "benchmarkingjob:\n  ? [a, b]\n  : 1\n", "a key must be a name"),
]


CASES = [
    pytest.param(file, text, message, id=f"{name} in {file}")
    for file in ("job.yaml", "testenv.yaml", "algorithm.yaml", "more.yaml")
    for name, text, message in ABSURD
    if (file, name) != ("more.yaml", "unknown keys")  # a file of hyperparameters has no unknown ones
]


@pytest.mark.parametrize(("file", "text", "message"), CASES)
def test_an_absurd_yaml_file(job: Job, capfd: pytest.CaptureFixture[str], file: str, text: str, message: str) -> None:
    job.hyperparameters(0, other_hyperparameters=["more.yaml"])
    job.write("more.yaml", {"seed": 1})
    job.save()
    roots = {"testenv.yaml": "testenv", "algorithm.yaml": "algorithm"}
    Path(file).write_text(text.replace("benchmarkingjob:", f"{roots.get(file, 'benchmarkingjob')}:"))
    assert main(["check", "-f", "job.yaml"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"ianvs: {file}")
    assert message in line.replace("unknown keys in testenv", "unknown keys in").replace("in algorithm", "in")


def test_a_grid_that_nobody_can_run(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    for i in (0, 1):
        job.hyperparameters(i, **{name: list(range(10)) for name in "abc"})
    assert main(["check", "-f", job.save()]) == 2
    assert "1,000,000 combinations of the modules' hyperparameters" in capfd.readouterr().err
    job.hyperparameters(0, **{f"h{i}": list(range(10)) for i in range(30)})
    assert main(["check", "-f", job.save()]) == 2
    assert "combinations of hyperparameters: more than 10,000 are not run" in capfd.readouterr().err


@pytest.mark.parametrize(
    "row",
    ['{"question": ' + "[" * depth + '"x"' + "]" * depth + ', "answer": "A"}' for depth in (101, 900, 3_000, 100_000)]
    + ['{"question": "q", "answer": ' + '{"a": ' * 500 + "1" + "}" * 500 + "}"],
)
def test_a_row_that_is_nested_too_deeply(job: Job, capfd: pytest.CaptureFixture[str], row: str) -> None:
    job.rows([{"question": "q", "answer": "A"}, row])
    assert main(["check", "-f", job.save()]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "data.jsonl:2: not usable JSON: nested too deeply" in line


def test_a_number_of_thousands_of_digits_in_a_row(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.rows(['{"question": "q", "answer": ' + "9" * 10_000 + "}"])
    assert main(["check", "-f", job.save()]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "data.jsonl:1: not usable JSON: Exceeds the limit" in line


@pytest.mark.parametrize("described", ["[" * 100_000, '{"dataset": ' + "9" * 10_000 + "}"])
def test_a_metadata_file_that_is_absurd(job: Job, capfd: pytest.CaptureFixture[str], described: str) -> None:
    (job.folder / "metadata.json").write_text(described)
    (job.folder / "data.jsonl").write_text(json.dumps({"query": "q"}))
    job.env["dataset"] = {"test_data_info": "metadata.json"}
    assert main(["check", "-f", job.save()]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "metadata.json:1: not" in line
