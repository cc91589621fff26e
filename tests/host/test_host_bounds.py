"""A file that no machine can hold or follow is refused at once, in one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import Job

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

ABSURD = [
    (BOMB, "more than 5000 entries, with aliases expanded"),
    ("benchmarkingjob:\n" + "".join(f"  key{i}: 1\n" for i in range(200_000)), "larger than 1 MiB"),
    ("benchmarkingjob:\n" + "".join(f"  key{i}: 1\n" for i in range(2_000)), "2000 unknown keys in"),
    ("benchmarkingjob: " + "[" * 5_000 + "]" * 5_000, "nested more than 50 levels deep"),
    ("benchmarkingjob: " + "9" * 400_000, "a value without quotes of more than 4000 characters"),
    ("benchmarkingjob:\n  ? [a, b]\n  : 1\n", "a key must be a name"),
]


CASES = [("job.yaml", *case) for case in ABSURD]
CASES += [(f"{name}.yaml", *ABSURD[0]) for name in ("testenv", "algorithm", "more")]


@pytest.mark.parametrize(("file", "text", "message"), CASES)
def test_an_absurd_yaml_file(job: Job, capfd: pytest.CaptureFixture[str], file: str, text: str, message: str) -> None:
    job.hyperparameters(0, other_hyperparameters=["more.yaml"])
    job.write("more.yaml", {"seed": 1})
    job.save()
    Path(file).write_text(text)
    assert main(["check", "-f", "job.yaml"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"ianvs: {file}")
    assert message in line


def test_a_grid_that_nobody_can_run(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    for i in (0, 1):
        job.hyperparameters(i, **{name: list(range(10)) for name in "abc"})
    assert main(["check", "-f", job.save()]) == 2
    assert "1,000,000 combinations of the modules' hyperparameters" in capfd.readouterr().err
    job.hyperparameters(0, **{f"h{i}": list(range(10)) for i in range(30)})
    assert main(["check", "-f", job.save()]) == 2
    assert "combinations of hyperparameters: the maximum is 10,000" in capfd.readouterr().err
