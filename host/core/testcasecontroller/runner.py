"""How the rows of a test case are answered: the contract that the runners keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar

from core.common.errors import Failure
from core.testcasecontroller.paradigm import JointInference

Progress = Callable[[int], None]
"""Told how many rows have been answered so far, those that wait for an earlier one among them."""


class Runner(ABC):
    """Answers the rows of one test case after the other."""

    in_process: ClassVar[bool]
    """Whether the models are built in this process; a runner that builds them elsewhere needs only the data here."""

    @abstractmethod
    def results(
        self, case_id: str, paradigm: JointInference, rows: Sequence[Any], progress: Progress
    ) -> Generator[Any, None, None]:
        """Each row's result, in the order of the rows. The first row that cannot be answered ends it: its exception
        passes through, after the results of the rows before it, and no further row is begun.
        """

    def release(self) -> list[Failure]:
        """End the test case: what went wrong while modules outside of this process were cleaned up."""
        return []

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What timings depend on, for ``environment.json``."""

    def close(self) -> None:  # noqa: B027 - only runners that hold something have to
        """End the job."""
