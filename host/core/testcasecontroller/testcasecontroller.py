"""Runs the test cases one after the other. A failed one does not affect the others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from core.common.utils import get_local_time
from core.storymanager.rank import Rank
from core.storymanager.recorder import CaseRecorder, RunInfo
from core.storymanager.repeats import combined, save_repeats
from core.testcasecontroller.testcase import Runner, TestCase


class TestCaseController:
    """``run_testcases()`` saves each finished test case at once. ``doubts``: reasons for doubtful times."""

    __test__ = False  # pytest must not collect it

    def __init__(
        self, test_cases: Sequence[TestCase], run: RunInfo, rank: Rank, runner: Runner, repeats: int, debug: bool
    ) -> None:
        self.test_cases, self.run, self.rank, self.runner = test_cases, run, rank, runner
        self.repeats, self.debug = repeats, debug
        self.finished = 0
        self.doubts: list[str] = []
        self.current: CaseRecorder | None = None

    def run_testcases(self) -> int:
        """Run all. Returns how many had an error, including those of a metric or a cleanup."""
        failed = 0
        with closing(self.runner):
            for number, case in enumerate(self.test_cases, 1):
                title = f"[{number}/{len(self.test_cases)}] {case.label()}"
                if self._run(case, title):
                    self.rank.save({**case.row(), "time": get_local_time()})
                    self.finished += 1
                self.current = None
                for failure in dict.fromkeys(case.failures):
                    print(f"{title} failed: {failure.where}: {failure.message}", file=sys.stderr, flush=True)
                    if self.debug:
                        print(failure.trace, file=sys.stderr)
                failed += bool(case.failures)
        return failed

    def _run(self, case: TestCase, title: str) -> bool:
        values: list[dict[str, Any]] = []
        doubts: list[str] = []
        for repeat in range(self.repeats):
            name = f"{title} (repeat {repeat + 1} of {self.repeats})" if self.repeats > 1 else title
            with CaseRecorder(self.run, case.output_dir, name, repeat) as self.current:
                case.values = {}
                if not case.run(self.current, self.runner):
                    self.current.end_live()
                    if self.current.rows:
                        print(f"{name}: {self.current.kept()}", file=sys.stderr)
                    return False
                self.current.finish(case.configuration(), case.env.dataset.skipped)
                doubts += [self.current.doubt] if self.current.doubt else []
            values.append(case.values)
        self.doubts += doubts[:1]
        save_repeats(case.output_dir, values)
        case.values = combined(values)
        return True
