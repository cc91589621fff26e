"""Runs the test cases one after the other, so that a failing one takes no other along."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core.storymanager.rank import Rank
from core.storymanager.story import CaseStory, Story
from core.testcasecontroller.testcase import TestCase


class TestCaseController:
    """``run_testcases()`` puts each finished test case on the leaderboard at once; ``finished`` counts them."""

    __test__ = False  # not a test class, whatever a test runner thinks of the name

    def __init__(self, test_cases: Sequence[TestCase], story: Story, rank: Rank, debug: bool = False) -> None:
        self.test_cases, self.story, self.rank, self.debug = test_cases, story, rank, debug
        self.finished = 0
        self.current: CaseStory | None = None

    def run_testcases(self) -> int:
        """Run all; how many failed, wholly or in a metric or a cleanup."""
        failed = 0
        for number, case in enumerate(self.test_cases, 1):
            title = f"[{number}/{len(self.test_cases)}] {case.label()}"
            with self.story.case(case, title) as self.current:
                complete = case.run(self.current)
                if complete:
                    self.current.finish()
                    self.rank.save(case, self.story.now())
                    self.finished += 1
                elif self.current.rows:
                    print(f"{title}: {self.current.kept()}", file=sys.stderr)
            self.current = None
            for failure in case.failures:
                print(f"{title} failed: {failure.where}: {failure.message}", file=sys.stderr, flush=True)
                if self.debug:
                    print(failure.trace, file=sys.stderr)
            failed += bool(case.failures)
        return failed
