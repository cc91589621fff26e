"""Names, at the end of a run, the tests that take long without saying so by the mark ``slow``."""

from __future__ import annotations

import pytest


class Longest:
    """``seconds``: what a test may take without the mark, its fixtures apart, which may serve other tests as well.

    A time decides nothing: the same test takes several times as long on a busy machine.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._found: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and "slow" not in report.keywords and report.duration > self._seconds:
            self._found[report.nodeid] = report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, seconds in sorted(self._found.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"LONG {name}: {seconds:.1f} s; make it faster, or mark it slow", yellow=True)
