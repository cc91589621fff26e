"""One test case of joint inference: build the modules, load, answer row after row, clean up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from core.common.constant import CLOUD, DRAFTER, EDGE, MINING_FREE, MODULES, PROCESSOR, ROUTER, VERIFIER
from core.common.errors import PLUGIN_ERRORS, explain
from core.testcasecontroller.module import INJECTED, ORACLE, Module
from sedna.core.joint_inference import JointInference as Job
from sedna.datasources import BaseDataSource


class Stage:
    """Where a test case is, in words. ``first``: index of the first row in this process, ``total``: number of rows."""

    def __init__(self, first: int = 0, total: int = 0) -> None:
        self.text = "starting"
        self.first, self.total = first, total

    def at_row(self, index: int) -> None:
        self.text = f"row {self.first + index + 1} of {self.total}"


class JointInference:
    """``prepare()`` returns the processed dataset, ``start()`` the function that answers a row. ``dataset`` is called
    once, after the modules have been built, as in Ianvs."""

    def __init__(
        self, modules: dict[str, Module], mining_mode: str, dataset: Callable[[Any], BaseDataSource], stage: Stage
    ) -> None:
        self.modules, self.mining_mode, self.stage = modules, mining_mode, stage
        self._load_dataset = dataset
        self._instances: dict[str, Any] = {}
        self._job: Job | None = None

    def prepare(self, models: bool = True) -> Any:
        """Build the modules in the order of the file, load the data, process it; without ``models``, the dataset
        processor alone. Plugins' errors pass through."""
        self.build(MODULES if models else (PROCESSOR,))
        processor = self._instances.get(PROCESSOR)
        dataset: Any = self._load_dataset(processor or self._instances.get(EDGE))
        if processor is not None:
            self.stage.text = f"{PROCESSOR} {self._name(PROCESSOR)}"
            dataset = processor(dataset)
            if not hasattr(dataset, "x"):
                returned = type(dataset).__name__
                raise TypeError(f"a dataset processor must return the dataset, with .x; it returned {returned}")
            if not len(dataset.x):
                raise ValueError("the dataset processor left no rows")
        self.stage.total = len(dataset.x)
        return dataset

    def build(self, kinds: Collection[str] = MODULES) -> None:
        """Build the modules of these kinds, except the router: it may need the loaded models."""
        for kind, module in self.modules.items():
            if kind != ROUTER and kind in kinds:
                self.stage.text = f"building {kind} {module.name}"
                self._instances[kind] = module.create()

    def start(self) -> Callable[[Any], Any]:
        """Load the models and build the router, once. Returns the thread-safe function that answers a row."""
        self._job = job = self._job or self._build_job()
        return lambda row: job.inference(row, mining_mode=self.mining_mode)

    def _build_job(self) -> Job:
        get, first = self._instances.get, DRAFTER if self.mining_mode == MINING_FREE else EDGE
        self.stage.text = f"loading {first} {self._name(first)}"
        if self.mining_mode == MINING_FREE:
            return Job(drafter=get(DRAFTER), verifier=get(VERIFIER))
        job = Job(estimator=get(EDGE), cloud=get(CLOUD))
        if router := self.modules.get(ROUTER):
            self.stage.text = f"building {router.type} {router.name}"
            models = {name: self._instances[name] for name in INJECTED} if router.name == ORACLE else {}
            self._instances[ROUTER] = job.hard_example_mining_algorithm = router.create(**models)
        return job

    def details(self) -> dict[str, Any]:
        """The modules' ``environment_details``, by kind, for ``environment.json``; an error takes the place of its
        details."""
        found: dict[str, Any] = {}
        for kind, instance in self._instances.items():
            if callable(tell := getattr(instance, "environment_details", None)):
                try:
                    found[kind] = tell()
                except PLUGIN_ERRORS as error:
                    found[kind] = {"error": explain(error)}
        return found

    def cleanup(self) -> list[tuple[str, BaseException]]:
        """Call ``cleanup()`` of every module that has one, then of the router. One that raises does not keep the others
        from theirs; the failures are returned with the module they belong to."""
        failures: list[tuple[str, BaseException]] = []
        for kind, instance in self._instances.items():
            try:
                if hasattr(instance, "cleanup"):
                    instance.cleanup()
            except PLUGIN_ERRORS as error:
                failures.append((f"cleanup of {kind} {self._name(kind)}", error))
        self._instances.clear()
        self._job = None
        return failures

    def _name(self, kind: str) -> str:
        return self.modules[kind].name
