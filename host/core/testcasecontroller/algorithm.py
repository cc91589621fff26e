"""An algorithm file: the paradigm and its modules, whose hyperparameters span a grid of test cases."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from core.common.constant import (
    CLOUD,
    DRAFTER,
    EDGE,
    JOINT_INFERENCE,
    MINING_FREE,
    MINING_MODES,
    PARADIGMS,
    ROUTER,
    SELF_DESIGN,
    VERIFIER,
)
from core.common.document import MOST_TEST_CASES, Document
from core.common.errors import Problems, hint
from core.common.plugins import import_plugin
from core.testcasecontroller.module import Module, ModuleConfig, grid

_KNOWN: dict[str, Any] = {
    "paradigm_type": str,
    "modules": list,
    "third_party_packages": list,
    # Read by Ianvs for other paradigms: accepted here, without effect.
    "incremental_learning_data_setting": dict,
    "lifelong_learning_data_setting": dict,
    "fl_data_setting": dict,
    "initial_model_url": str,
    "mode": str,
    "quantization_type": str,
    "llama_quantize_path": str,
}
MODE_KEY = "hard_example_mining_mode"
_KNOWN[MODE_KEY] = object
REQUIRED = dict.fromkeys(MINING_MODES, (EDGE, CLOUD, ROUTER)) | {
    SELF_DESIGN: (EDGE, CLOUD),
    MINING_FREE: (DRAFTER, VERIFIER),
}
"""The module types that a mode cannot do without."""


@dataclass
class Algorithm:
    """``test_cases()`` yields one dict of module type to Module for every point of the grid."""

    name: str
    doc: Document
    paradigm_type: str = ""
    modules: list[ModuleConfig] = field(default_factory=list)

    @classmethod
    def parse(cls, name: str, doc: Document, mining_mode: str | None, problems: Problems) -> Algorithm:
        """Read an algorithm file; what is wrong with it goes to ``problems``. ``mining_mode`` is None where the file
        that tells it cannot be read.
        """
        path = ("algorithm",)
        root = doc.root("algorithm", _KNOWN, problems)
        entries = doc.mapping(root, path, _KNOWN, problems, ("paradigm_type", "modules"))
        if MODE_KEY in entries and mining_mode:
            misplaced_mode(doc, "algorithm", mining_mode, problems)
        algorithm = cls(name, doc, entries.get("paradigm_type", ""))
        if algorithm.paradigm_type and not algorithm._check_paradigm(problems):
            return algorithm
        for i, value in enumerate(entries.get("modules", [])):
            algorithm.modules.append(ModuleConfig.parse(doc, (*path, "modules", i), value, problems))
        if "modules" in entries:
            algorithm._check_types(mining_mode, problems)
        if (count := math.prod(len(module.combinations) for module in algorithm.modules)) > MOST_TEST_CASES:
            message = f"{count:,} combinations of the modules' hyperparameters"
            problems.add(doc.place(*path, "modules"), f"{message}: more than {MOST_TEST_CASES:,} are not run")
        return algorithm

    def _check_paradigm(self, problems: Problems) -> bool:
        kind, place = self.paradigm_type, self.doc.place("algorithm", "paradigm_type")
        if kind not in PARADIGMS:
            problems.add(place, f"unknown paradigm_type {kind!r}.{hint(kind, PARADIGMS)}")
        elif kind != JOINT_INFERENCE:
            problems.add(place, f"this host runs jointinference only; {kind} is run by upstream KubeEdge Ianvs")
        return kind == JOINT_INFERENCE

    def _check_types(self, mining_mode: str | None, problems: Problems) -> None:
        given: list[str] = []
        for module in self.modules:
            if module.type in given:
                problems.add(module.place(), f"a second module of type {module.type}: each type may stand once")
            given.append(module.type)
        if mining_mode == SELF_DESIGN and ROUTER not in given:
            message = f"it asks for a module of type {ROUTER} in every mode"
            problems.fails_upstream(self.doc.place("algorithm", "modules"), message)
        missing = [name for name in REQUIRED.get(mining_mode or "", ()) if name not in given]
        # A module whose type is not even readable has its own message already.
        if missing and "" not in given:
            message = f"mode {mining_mode} needs a module of type {' and '.join(missing)} in algorithm {self.name}"
            problems.add(self.doc.place("algorithm", "modules"), message)

    def resolve(self, problems: Problems) -> None:
        packages = self.doc.root("algorithm").get("third_party_packages", [])
        for i, value in enumerate(packages):
            path = ("algorithm", "third_party_packages", i)
            entries = self.doc.mapping(value, path, {"name": str, "url": str}, problems, required=("name", "url"))
            if "url" in entries:
                import_plugin(entries["url"], self.doc, path, problems)
        faults = len(problems.errors)
        for module in self.modules:
            module.resolve(problems)
        if len(problems.errors) == faults:
            for modules in self.test_cases():
                for module in self.modules:
                    module.check_beside(modules, problems)

    def build_routers(self, problems: Problems) -> None:
        for module in self.modules:
            module.build_router(problems)

    def test_cases(self) -> list[dict[str, Module]]:
        choices = [
            (c.type, [Module(c.type, c.name, c.url, point, c.target) for point in c.combinations]) for c in self.modules
        ]
        return grid(choices)

    def hyperparameters(self) -> dict[str, set[str]]:
        """``<module type>-<name>``, in the order of the file, with the different values, as texts."""
        found: dict[str, set[str]] = {}
        for module in self.modules:
            for point in module.combinations:
                for name, value in point.items():
                    found.setdefault(f"{module.type}-{name}", set()).add(repr(value))
        return found

    def varied(self) -> tuple[str, ...]:
        return tuple(name for name, values in self.hyperparameters().items() if len(values) > 1)


def misplaced_mode(doc: Document, root: str, mining_mode: str, problems: Problems) -> None:
    """Warn of a mining mode that stands where Ianvs, too, does not look for it: many examples have it there."""
    message = "has no effect here, as in Ianvs: it belongs into the testenv file. The mode of this job is"
    problems.warn(doc.place(root, MODE_KEY), f"{MODE_KEY} {message} {mining_mode}")
