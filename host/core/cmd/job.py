"""Benchmarking jobs: the YAML files and their validation."""

from __future__ import annotations

import os
import re
from typing import Any

from core.common.document import Document
from core.common.errors import ConfigError, Problems, nearest
from core.common.files import check_writable
from core.common.section import Section
from core.common.utils import plural
from core.runner.config import RunConfig
from core.runner.local import LocalRunner
from core.storymanager.rank import Rank
from core.storymanager.rank_config import Columns, RankConfig
from core.storymanager.recorder import RunInfo
from core.storymanager.repeats import check_intervals
from core.testcasecontroller.algorithm import MODE_KEY, Algorithm, warn_misplaced_mode
from core.testcasecontroller.row_checks import check_rows, describe_rows
from core.testcasecontroller.testcase import Runner, TestCase, plugin_environment
from core.testcasecontroller.testcasecontroller import TestCaseController
from core.testenvmanager.testenv import TestEnv

_KNOWN: dict[str, Any] = {
    "name": str, "workspace": str, "testenv": str, "test_object": dict, "rank": dict, MODE_KEY: object,
    **RunConfig.KINDS,
}  # fmt: skip
_ELSEWHERE = {
    "simulation": "only upstream KubeEdge Ianvs builds a simulation environment; delete the key",
}
_UNUSABLE_NAME = re.compile(r'[/\\:*?"<>|\x00-\x1f]|^\.+$|^\s|[\s.]$')
LEADERBOARD_FOLDER = "rank"


class BenchmarkingJob:
    """A job file and its test cases. The constructor raises ConfigError with all errors, without loading a model."""

    def __init__(self, file: str) -> None:
        if not os.path.isfile(file):
            raise ConfigError([_no_file(file)])
        self.file, self.problems = file, Problems()
        self.at = Section(Document(file), self.problems, ("benchmarkingjob",))
        entries = self._read_keys()
        env, unsure = self._read_env(entries)
        self.algorithms = self._parse_algorithms(entries, env, unsure)
        columns = self._columns(env)
        rank = RankConfig.parse(self.at.at("rank"), entries.get("rank", {"sort_by": []}), columns, unsure)
        self.problems.raise_if_any()
        assert env is not None
        self.env = env
        self._load()
        self.test_cases = [
            TestCase(algorithm.name, algorithm.paradigm_type, modules, env, self.workspace, algorithm.varied())
            for algorithm in self.algorithms
            for modules in algorithm.test_cases()
        ]
        self.rank = Rank(rank, self.workspace, columns)

    def _read_keys(self) -> dict[str, Any]:
        required = ("name", "testenv", "test_object", "rank")
        entries = self.at.mapping(self.at.root(_KNOWN), _KNOWN, required, _ELSEWHERE)
        self.name: str = entries.get("name", "")
        _check_name(self.name, self.at.at("name"))
        self.run_config = RunConfig.parse(self.at, entries)
        for key in filter(entries.__contains__, RunConfig.KINDS):
            self.at.differs_upstream(f"upstream Ianvs ignores {key}", key)
        folder = entries.get("workspace", "./workspace")
        if "\0" in folder:
            self.at.add(f"{folder!r} is not a valid folder name", "workspace")
        self.workspace = os.path.join(os.path.expanduser(folder), self.name)
        return entries

    def _read_env(self, entries: dict[str, Any]) -> tuple[TestEnv | None, set[str]]:
        """The test environment, and the kinds of names that are incomplete because of errors in its file."""
        doc = _open(entries.get("testenv"), self.at.at("testenv"))
        if doc is None:
            return None, {"metrics"}
        env = TestEnv.parse(Section(doc, self.problems, ("testenv",)))
        incomplete = bool(self.problems.errors)
        # Before the job file is checked: the error of a misspelled metric belongs to the testenv file.
        env.resolve()
        if MODE_KEY in entries:
            warn_misplaced_mode(self.at, env.mining_mode)
        if self.run_config.repeats > 1:
            check_intervals(env.metrics)
        incomplete = incomplete or any(metric.function is None for metric in env.metrics)
        return env, {"metrics"} if incomplete else set()

    def _load(self) -> None:
        self.env.dataset.read(self.env.on_malformed_row)
        for algorithm in self.algorithms:
            algorithm.resolve()
        self.problems.raise_if_any()
        self._check_file_names()
        check_rows(self.algorithms, self.env.dataset, self.problems)
        self.problems.raise_if_any()

    def _parse_algorithms(self, entries: dict[str, Any], env: TestEnv | None, unsure: set[str]) -> list[Algorithm]:
        at, before, algorithms = self.at.at("test_object"), len(self.problems.errors), []
        if "test_object" in entries:
            known = {"type": ("algorithms",), "algorithms": list}
            value = at.mapping(entries["test_object"], known, required=("type", "algorithms"))
            if value.get("algorithms") == []:
                at.add("algorithms is empty", "algorithms")
            named: set[str] = set()
            for i, item in enumerate(value.get("algorithms", [])):
                algorithms += self._parse_algorithm(item, at.at("algorithms", i), env, named)
        if len(self.problems.errors) > before or "test_object" not in entries:
            unsure |= {"modules", "hyperparameters"}
        return algorithms

    def _parse_algorithm(self, item: Any, at: Section, env: TestEnv | None, named: set[str]) -> list[Algorithm]:
        entries = at.mapping(item, {"name": str, "url": str}, required=("name", "url"))
        name = entries.get("name", "")
        _check_name(name, at, LEADERBOARD_FOLDER)
        if name and name in named:
            at.add(f"a second algorithm with the name {name!r}")
            return []
        named.add(name)
        doc = _open(entries.get("url"), at.at("url"))
        if doc is None or not name:
            return []
        mode = env.mining_mode if env else None
        return [Algorithm.parse(name, Section(doc, self.problems, ("algorithm",)), mode)]

    def _check_file_names(self) -> None:
        """Warn of plugin files with the same name in several folders: upstream imports only the first."""
        first: dict[str, str] = {}
        users: list[Any] = [
            *self.env.metrics,
            *(module for algorithm in self.algorithms for module in algorithm.modules),
        ]
        for user in users:
            used = first.setdefault(os.path.basename(user.url), user.url)
            if user.url and used != user.url:
                message = f"upstream Ianvs would run {used} instead of {user.url}, which has the same file name"
                user.at.differs_upstream(f"{message}; rename one of them", "url")

    def _columns(self, env: TestEnv | None) -> Columns:
        metrics = [metric.name for metric in env.metrics if metric.function is not None] if env else []
        modules = [m.type for a in self.algorithms for m in a.modules]
        hyperparameters = [name for a in self.algorithms for name in a.hyperparameters()]
        return Columns(metrics, list(dict.fromkeys(modules)), list(dict.fromkeys(hyperparameters)))

    def describe(self) -> str:
        dataset = self.env.dataset
        left_out = f" ({plural(dataset.skipped, 'malformed one')} left out)" if dataset.skipped else ""
        again = f", {self.run_config.repeats} repeats" if self.run_config.repeats > 1 else ""
        cases, metrics = plural(len(self.test_cases), "test case"), plural(len(self.env.metrics), "metric")
        return f"{cases}{again}, {plural(len(dataset), 'row')}{left_out}, {metrics}"

    def describe_rows(self) -> list[str]:
        """Descriptions of the rows by plugins. Raises ConfigError."""
        lines = describe_rows(self.algorithms, self.env.dataset, self.problems)
        self.problems.raise_if_any()
        return lines

    def build_routers(self) -> None:
        """Build all routers once. Raises ConfigError if a constructor fails."""
        with plugin_environment():
            for algorithm in self.algorithms:
                for module in algorithm.modules:
                    module.build_router()
        self.problems.raise_if_any()

    def check_workspace(self) -> None:
        """Raise WorkspaceError if results cannot be written. Creates nothing."""
        names = (LEADERBOARD_FOLDER, *(algorithm.name for algorithm in self.algorithms))
        for folder in (self.workspace, *(os.path.join(self.workspace, name) for name in names)):
            check_writable(folder)

    def controller(self, run_id: str, debug: bool) -> TestCaseController:
        runner = self._runner()
        run = RunInfo(self.file, run_id, runner.describe)
        return TestCaseController(self.test_cases, run, self.rank, runner, self.run_config.repeats, debug)

    def _runner(self) -> Runner:
        config = self.run_config
        if config.ray is None:
            return LocalRunner(config.concurrency)
        from core.runner.ray import RayRunner

        return RayRunner(config.ray, config.concurrency, self.workspace, self.file, read_test_cases)


def _check_name(name: str, at: Section, *taken: str) -> None:
    if name and (_UNUSABLE_NAME.search(name) or name in taken):
        at.add(f"{name!r} is not a valid name: it becomes a folder of the workspace")


def _open(url: str | None, at: Section) -> Document | None:
    file = at.find(url) if url is not None else None
    if file is not None and not (os.path.isfile(file) and file.endswith((".yaml", ".yml"))):
        at.add(f"{url} is not a .yaml or .yml file")
        return None
    return Document(file) if file is not None else None


def _no_file(file: str) -> str:
    if os.path.isdir(file):
        jobs = sorted(name for name in os.listdir(file) if name.endswith((".yaml", ".yml")) and "job" in name)
        found = f": {', '.join(os.path.join(file, name) for name in jobs[:5])}" if jobs else ""
        return f"{file} is a folder, but -f needs the YAML file of a job{found}"
    folder, name = os.path.split(file)
    close = nearest(name, os.listdir(folder or ".")) if os.path.isdir(folder or ".") else None
    return f"job file not found: {file}" + (f". Did you mean {os.path.join(folder, close)!r}?" if close else "")


def read_test_cases(file: str) -> list[TestCase]:
    return BenchmarkingJob(file).test_cases
