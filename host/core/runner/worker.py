"""A worker process of a cluster, which answers rows of one test case."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from core.common.constant import MODULES, PROCESSOR
from core.common.errors import PLUGIN_ERRORS, ConfigError, Failure
from core.common.files import make_folder
from core.common.run_lock import process_exists
from core.runner.journal import Journal, Piece
from core.testcasecontroller.paradigm import JointInference, Stage
from core.testcasecontroller.testcase import TestCase

SCRATCH = "ianvs-worker-"
"""Prefix of the names of workers' folders, followed by the process id."""


@dataclass(frozen=True)
class Setup:
    """Folder and file of the job, and the function that reads its test cases: plugin classes cannot be pickled.
    ``fetch`` resolves a reference to a piece of the journal."""

    folder: str
    job_file: str
    read: Callable[[str], Sequence[TestCase]]
    fetch: Callable[[Any], Piece]


class Worker:
    """Returns failures; an exception is an error of the worker itself. ``answer`` is thread-safe."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._stopped = False
        self._reading, self._opening = threading.Lock(), threading.Lock()
        self._paradigm: JointInference | None = None
        self._scratch = ""

    def open(self, case_id: str, variables: dict[str, str], journal: Sequence[Any]) -> tuple[str, Failure | None]:
        """Build and load the modules of a test case. ``variables``: environment variables of the run; ``journal``:
        references to its pieces. Returns the name of the node and the failure, if any."""
        with self._opening:
            return self._open(case_id, variables, journal)

    def _open(self, case_id: str, variables: dict[str, str], journal: Sequence[Any]) -> tuple[str, Failure | None]:
        node, stage = socket.gethostname(), Stage("preparing a worker")
        try:
            case = self._find(case_id)
            _remove_stale()
            self._scratch = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-")
            folder = os.path.join(self._scratch, os.path.basename(case.workspace))
            self._journal = Journal(folder)
            self._journal.add(map(self._setup.fetch, journal))
            self._journal.skip()
            result_folder = os.path.join(folder, case.algorithm)
            make_folder(result_folder)
            os.environ.update(variables, RESULT_SAVED_URL=result_folder, IANVS_WORKER=node)
            self._paradigm = JointInference(case.modules, case.env.mining_mode, case.env.dataset.fresh, stage)
            self._paradigm.build([kind for kind in MODULES if kind != PROCESSOR])
            self._answer = self._paradigm.start()
        except ConfigError as error:
            message = f"{'; '.join(error.problems)} (every node needs the job's files at the same path)"
            return node, Failure(f"{stage.text} on {node}", message, message)
        except PLUGIN_ERRORS as error:
            return node, Failure.of(f"{stage.text} on {node}", error)
        return node, None

    def _find(self, case_id: str) -> TestCase:
        if not os.path.isdir(self._setup.folder):
            raise ConfigError([f"the folder {self._setup.folder} does not exist"])
        os.chdir(self._setup.folder)
        for case in self._setup.read(self._setup.job_file):
            if case.id == case_id:
                return case
        raise ConfigError([f"{self._setup.job_file} has other test cases there"])

    def answer(self, where: str, row: Any) -> tuple[Any, Failure | None, list[Piece]] | None:
        """A row's result or failure, and new pieces of the journal; None after ``stop``."""
        if self._stopped:
            return None
        result = failure = None
        try:
            result = self._answer(row)
        except PLUGIN_ERRORS as error:
            self._stopped = True
            failure = Failure.of(where, error)
        with self._reading:
            return result, failure, list(self._journal.added())

    def stop(self) -> None:
        self._stopped = True

    def release(self) -> tuple[list[Failure], list[Piece]]:
        """Clean up the modules and the folder; returns the failures and the new pieces of the journal."""
        with self._opening:
            if self._paradigm is None:
                return [], []
            failures = [Failure.of(where, error) for where, error in self._paradigm.cleanup()]
            added = list(self._journal.added())
            shutil.rmtree(self._scratch, ignore_errors=True)
            return failures, added


def _remove_stale() -> None:
    """Remove the folders of killed workers, which contain copies of journals."""
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        pid = name.removeprefix(SCRATCH).partition("-")[0]
        if name.startswith(SCRATCH) and pid.isdigit() and not process_exists(int(pid)):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
