"""A process of a cluster that answers rows: it builds the modules of a test case once and keeps them between shards."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from core.common.claim import process_lives
from core.common.constant import ModuleType, words
from core.common.errors import PLUGIN_ERRORS, ConfigError, Failure
from core.common.files import make_folder
from core.runner.journal import Journal, Piece
from core.runner.local import LocalRunner
from core.testcasecontroller.algorithm.paradigm import JointInference
from core.testcasecontroller.algorithm.paradigm.joint_inference import Stage
from core.testcasecontroller.testcase import TestCase
from core.testcasecontroller.testcase.testcase import plugin_environment

MODULES = tuple(kind for kind in words(ModuleType) if kind != ModuleType.DATA_PROCESSOR.value)

SCRATCH = "ianvs-worker-"
"""How the names of workers' folders begin; the number of the process follows."""

Item = tuple[str, Any, list[Piece]]
"""``("row", result, news)`` or ``("failed", failure, news)``; ``news``: what the journal has got meanwhile."""


@dataclass(frozen=True)
class Setup:
    """What all workers of a job share: the folder in which it was started, its file, and what reads test cases from
    it. They are read anew in each worker, because plugins' classes cannot be sent there.
    """

    folder: str
    job_file: str
    read: Callable[[str], Sequence[TestCase]]
    concurrency: int


class Worker:
    """Every method's failures are values: an exception that leaves it means that the worker itself is broken."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._cases: Sequence[TestCase] | None = None
        _remove_stale()
        self._scratch = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-")
        self._journal: Journal | None = None
        self._stack = ExitStack()
        self._paradigm: JointInference | None = None

    def open(self, case_id: str, variables: dict[str, str], *journal: Piece) -> tuple[str, Failure | None]:
        """Build the modules of a test case; the node's name, and what went wrong. ``variables`` are those of the
        environment by which the host tells plugins about the run; ``journal``: see ``Journal.news``.
        """
        node = socket.gethostname()
        self._stage, self._stopped = Stage(), False
        self._stage.text = "preparing a worker"
        try:
            self._case_id, case = case_id, self._find(case_id)
            folder = os.path.join(self._scratch, os.path.basename(case.workspace))
            self._journal = self._journal or Journal(folder)
            self._journal.extend(journal)
            result_folder = os.path.join(folder, case.algorithm)
            make_folder(result_folder)
            self._stack.enter_context(plugin_environment())
            os.environ.update(variables, RESULT_SAVED_URL=result_folder, IANVS_WORKER=node)
            env = case.env
            self._paradigm = JointInference(case.modules, env.mining_mode, env.dataset.fresh, self._stage)
            self._paradigm.build(MODULES)
        except ConfigError as error:
            message = f"{'; '.join(error.problems)} (every node needs the job's files at the same place)"
            return node, Failure(f"{self._stage.text} on {node}", message, message)
        except PLUGIN_ERRORS as error:
            return node, Failure.of(f"{self._stage.text} on {node}", error)
        return node, None

    def _find(self, case_id: str) -> TestCase:
        """The test case with this id. ConfigError if this node's files describe none."""
        if self._cases is None:
            if not os.path.isdir(self._setup.folder):
                raise ConfigError([f"the folder {self._setup.folder} is not there"])
            os.chdir(self._setup.folder)
            self._cases = self._setup.read(self._setup.job_file)
        for case in self._cases:
            if case.id == case_id:
                return case
        raise ConfigError([f"{self._setup.job_file} describes other test cases there"])

    def answer(self, first: int, total: int, rows: list[Any]) -> Iterator[Item]:
        """Answer rows, of which the first has the index ``first`` among the ``total`` rows of the test case. Ends early
        after a failure, and when ``stop`` has been called.
        """
        assert self._paradigm is not None
        self._stage.first, self._stage.total = first, total
        results = LocalRunner(self._setup.concurrency).results(self._case_id, self._paradigm, rows, lambda _: None)
        try:
            for result in results:
                yield "row", result, self._news()
                if self._stopped:
                    break
        except PLUGIN_ERRORS as error:
            yield "failed", Failure.of(self._stage.text, error), self._news()
        finally:
            results.close()

    def stop(self) -> None:
        """Begin no further row. Called while ``answer`` runs."""
        self._stopped = True

    def release(self) -> tuple[list[Failure], list[Piece]]:
        """Clean up the modules: what went wrong, and what the journal has got meanwhile."""
        failures = []
        if self._paradigm is not None:
            failures = [Failure.of(where, error) for where, error in self._paradigm.cleanup()]
            self._paradigm = None
        self._stack.close()
        return failures, self._news()

    def close(self) -> None:
        """Remove what the worker has written on its node."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _news(self) -> list[Piece]:
        return self._journal.added() if self._journal is not None else []


def _remove_stale() -> None:
    """Remove the folders of workers that were killed. They hold copies of whole journals."""
    place = tempfile.gettempdir()
    for name in os.listdir(place):
        pid = name.removeprefix(SCRATCH).partition("-")[0]
        if name.startswith(SCRATCH) and pid.isdigit() and not process_lives(int(pid)):
            shutil.rmtree(os.path.join(place, name), ignore_errors=True)
