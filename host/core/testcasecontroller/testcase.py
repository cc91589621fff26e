"""Test cases: an algorithm with fixed hyperparameters in the test environment."""

from __future__ import annotations

import gc
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from core.common.errors import PLUGIN_ERRORS, Failure, WorkspaceError, explain
from core.common.files import make_folder
from core.storymanager.recorder import CaseRecorder
from core.testcasecontroller.module import Module
from core.testcasecontroller.paradigm import JointInference, Stage
from core.testenvmanager.dataset import aligned_labels
from core.testenvmanager.testenv import TestEnv

NAMED = 6
"""Maximum number of named metrics that failed with the same message."""

Progress = Callable[[int], None]
"""Called with the number of answered rows, including those that wait for an earlier one."""


class Runner(ABC):
    """Answers the rows of test cases, one test case at a time."""

    in_process: ClassVar[bool]
    """Whether the models are built in this process."""

    @abstractmethod
    def results(
        self, case_id: str, paradigm: JointInference, rows: Sequence[Any], progress: Progress
    ) -> Generator[Any, None, None]:
        """The results in the order of the rows, then the exception of the first failed row, if any."""

    def release(self) -> list[Failure]:
        """End the test case. Returns cleanup errors of modules in other processes."""
        return []

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What timings depend on (``environment.json``)."""

    def close(self) -> None:  # noqa: B027 - optional
        """End the job."""


@dataclass
class TestCase:
    """``id`` depends only on the configuration and the content of the data file. ``varied``: the hyperparameters
    (``<module type>-<name>``) that differ between the algorithm's test cases. ``run()`` sets ``values`` and
    ``failures``.
    """

    __test__ = False  # pytest must not collect it

    algorithm: str
    paradigm: str
    modules: dict[str, Module]
    env: TestEnv
    workspace: str
    varied: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    @property
    def id(self) -> str:
        text = json.dumps(self.configuration(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def output_dir(self) -> str:
        return os.path.join(self.workspace, self.algorithm, self.id)

    def label(self) -> str:
        point = self._hyperparameters()
        return " ".join([self.algorithm, *(f"{name}={point.get(name)}" for name in self.varied)])

    def row(self) -> dict[str, str]:
        return {
            "algorithm": self.algorithm,
            **{name: "" if value is None else str(value) for name, value in self.values.items()},
            "paradigm": self.paradigm,
            **{kind: module.name for kind, module in self.modules.items()},
            **self._hyperparameters(),
            "url": self.output_dir,
        }

    def _hyperparameters(self) -> dict[str, str]:
        return {f"{m.type}-{name}": str(v) for m in self.modules.values() for name, v in m.hyperparameters.items()}

    def configuration(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm,
            "paradigm_type": self.paradigm,
            "hard_example_mining_mode": self.env.mining_mode,
            "dataset": self.env.dataset.url,
            "dataset_digest": self.env.dataset.digest,
            "on_malformed_row": self.env.on_malformed_row,
            "modules": [
                {"type": m.type, "name": m.name, "url": m.url, "hyperparameters": m.hyperparameters}
                for m in self.modules.values()
            ],
        }

    def run(self, recorder: CaseRecorder, runner: Runner) -> bool:
        """Run the test case. Returns whether it has ``values`` for the leaderboard. Exceptions of plugins become
        ``failures``; WorkspaceError and KeyboardInterrupt pass through."""
        stage = Stage()
        with plugin_environment():
            result_folder = os.path.join(self.workspace, self.algorithm)
            make_folder(result_folder)
            os.environ["RESULT_SAVED_URL"] = result_folder
            os.environ["IANVS_REPEAT"] = str(recorder.repeat)
            os.environ["IANVS_CONCURRENCY"] = str(runner.describe()["concurrency"])
            paradigm = JointInference(self.modules, self.env.mining_mode, self.env.dataset.fresh, stage)
            try:
                labels, results = self._answer(paradigm, recorder, runner)
                recorder.details = paradigm.details()
            except WorkspaceError:
                raise
            except PLUGIN_ERRORS as error:
                self.failures.append(Failure.of(stage.text, error))
                labels = results = None
            finally:
                failures = [Failure.of(where, error) for where, error in paradigm.cleanup()]
                failures += runner.release()
                gc.collect()  # frees models with reference cycles before the next test case
            self.failures += failures
            if results is not None:
                self._compute_metrics(labels, results)
        return results is not None

    def _answer(self, paradigm: JointInference, recorder: CaseRecorder, runner: Runner) -> tuple[Any, list[Any]]:
        dataset = paradigm.prepare(models=runner.in_process)
        labels = aligned_labels(dataset, self.env.dataset.labels)
        results = []
        recorder.begin(len(dataset.x))
        with closing(runner.results(self.id, paradigm, dataset.x, recorder.answered)) as rows:
            for result in rows:
                recorder.add(result)
                results.append(result)
        return labels, results

    def _compute_metrics(self, labels: Any, results: list[Any]) -> None:
        failed: dict[str, tuple[list[str], BaseException]] = {}
        for metric in self.env.metrics:
            try:
                self.values[metric.name] = metric.compute(labels, results)
            except PLUGIN_ERRORS as error:
                self.values[metric.name] = None
                failed.setdefault(explain(error), ([], error))[0].append(metric.name)
        for names, reason in failed.values():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            noun = "metrics" if len(names) > 1 else "metric"
            self.failures.append(Failure.of(f"{noun} {', '.join(names[:NAMED])}{more}", reason))


@contextmanager
def plugin_environment() -> Iterator[None]:
    """Restore the environment variables at the end."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name, value in dict(os.environ).items():
            if name not in before:
                del os.environ[name]
            elif value != before[name]:
                os.environ[name] = before[name]
