"""Joint inference: builds and loads the modules, answers rows, cleans up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from core.common.constant import CLOUD, DRAFTER, EDGE, MINING_FREE, MODULES, PROCESSOR, ROUTER, VERIFIER
from core.common.errors import PLUGIN_ERRORS, explain
from core.testcasecontroller.module import INJECTED, ORACLE, Module
from sedna.core.joint_inference import JointInference as Job
from sedna.datasources import BaseDataSource


class Stage:
    """The current step of a test case, for messages. ``total``: number of rows."""

    def __init__(self, text: str = "starting") -> None:
        self.text, self.total = text, 0

    def at_row(self, index: int) -> None:
        self.text = f"row {index + 1} of {self.total}"


class JointInference:
    """``prepare()`` returns the processed dataset, ``start()`` the function that answers a row. ``dataset`` is called
    once, after the modules have been built, as in Ianvs. Exceptions of plugins pass through."""

    def __init__(
        self, modules: dict[str, Module], mining_mode: str, dataset: Callable[[Any], BaseDataSource], stage: Stage
    ) -> None:
        self.modules, self.mining_mode, self.stage = modules, mining_mode, stage
        self._load_dataset = dataset
        self._instances: dict[str, Any] = {}
        self._job: Job | None = None

    def prepare(self, models: bool = True) -> Any:
        """Build the modules in the order of the file (without ``models``, the dataset processor only), then load and
        process the data."""
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
        """Build the modules of these types, except the router, which may need the loaded models."""
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
        """``environment_details()`` of the modules by type, or the error of the call."""
        found: dict[str, Any] = {}
        for kind, instance in self._instances.items():
            if callable(describe := getattr(instance, "environment_details", None)):
                try:
                    found[kind] = describe()
                except PLUGIN_ERRORS as error:
                    found[kind] = {"error": explain(error)}
        return found

    def cleanup(self) -> list[tuple[str, BaseException]]:
        """Call ``cleanup()`` of every module that defines it, the router last. Returns the errors with their place."""
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
