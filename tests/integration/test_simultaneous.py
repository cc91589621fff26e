"""Two runs of one job at the same time: the first goes on as if alone, the second is told of it and asks nothing."""

from __future__ import annotations

import subprocess

from tests.support.counting_api import CountingAPI
from tests.support.harness import Workplace, command, questions

ROWS = 6


def test_a_second_run_is_refused(workplace: Workplace, api: CountingAPI) -> None:
    workplace.on_api(api.url)
    workplace.algorithms("EdgeOnly", "CloudOnly")
    workplace.data(questions(ROWS))
    assert workplace.ianvs().code == 0
    before, api.slow = len(api.asked), 2.0
    first = workplace.start("--fresh")
    first.wait_for(lambda: len(api.asked) > before)
    job = ["-f", f"examples/{workplace.example.name}/benchmarkingjob.yaml"]
    second = subprocess.run(
        command() + job, cwd=workplace.root, env=workplace.environment, capture_output=True, text=True, timeout=300
    )
    api.slow = 0.0
    outcome = first.wait()
    assert outcome.code == 0, outcome.output
    assert second.returncode == 1
    (line,) = second.stderr.splitlines()
    assert f"is in use by another run: process {first.process.pid} on " in line
    assert "Wait until it has ended, or end it (kill " in line
    assert len(api.asked) - before == 2 * ROWS, "something was asked twice"
    assert workplace.ianvs().code == 0
    assert len(api.asked) - before == 2 * ROWS
