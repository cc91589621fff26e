"""Algorithm files: the paradigm and its modules. The grid of their hyperparameters gives the test cases."""

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
from core.common.document import MAX_TEST_CASES
from core.common.errors import hint
from core.common.plugins import import_plugin
from core.common.section import Section
from core.testcasecontroller.module import Module, ModuleConfig, grid

_KNOWN: dict[str, Any] = {
    "paradigm_type": str,
    "modules": list,
    "third_party_packages": list,
    # Keys of other paradigms, without effect here.
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
"""The required module types of a mode."""


@dataclass
class Algorithm:
    """An algorithm file. ``test_cases()`` returns a dict from module type to Module per point of the grid."""

    name: str
    at: Section
    paradigm_type: str = ""
    modules: list[ModuleConfig] = field(default_factory=list)
    packages: list[Any] = field(default_factory=list)

    @classmethod
    def parse(cls, name: str, at: Section, mining_mode: str | None) -> Algorithm:
        """Read an algorithm file. ``mining_mode`` is None if the testenv file cannot be read."""
        entries = at.mapping(at.root(_KNOWN), _KNOWN, ("paradigm_type", "modules"))
        if MODE_KEY in entries and mining_mode:
            warn_misplaced_mode(at, mining_mode)
        algorithm = cls(name, at, entries.get("paradigm_type", ""), packages=entries.get("third_party_packages", []))
        if algorithm.paradigm_type and not algorithm._check_paradigm():
            return algorithm
        for i, value in enumerate(entries.get("modules", [])):
            algorithm.modules.append(ModuleConfig.parse(at.at("modules", i), value))
        if "modules" in entries:
            algorithm._check_types(mining_mode)
        if (count := math.prod(len(module.combinations) for module in algorithm.modules)) > MAX_TEST_CASES:
            message = f"{count:,} combinations of the modules' hyperparameters"
            at.add(f"{message}: the maximum is {MAX_TEST_CASES:,}", "modules")
        return algorithm

    def _check_paradigm(self) -> bool:
        kind = self.paradigm_type
        if kind not in PARADIGMS:
            self.at.add(f"unknown paradigm_type {kind!r}.{hint(kind, PARADIGMS)}", "paradigm_type")
        elif kind != JOINT_INFERENCE:
            message = f"this host runs jointinference only; for {kind}, use upstream KubeEdge Ianvs"
            self.at.add(message, "paradigm_type")
        return kind == JOINT_INFERENCE

    def _check_types(self, mining_mode: str | None) -> None:
        given: list[str] = []
        for module in self.modules:
            if module.type in given:
                module.at.add(f"a second module of type {module.type}: each type is allowed once")
            given.append(module.type)
        if mining_mode == SELF_DESIGN and ROUTER not in given:
            self.at.fails_upstream(f"it requires a module of type {ROUTER} in every mode", "modules")
        missing = [name for name in REQUIRED.get(mining_mode or "", ()) if name not in given]
        # A module with an unreadable type has its own message.
        if missing and "" not in given:
            message = f"mode {mining_mode} needs a module of type {' and '.join(missing)} in algorithm {self.name}"
            self.at.add(message, "modules")

    def resolve(self) -> None:
        """Import the plugin files and find the classes."""
        for i, value in enumerate(self.packages):
            at = self.at.at("third_party_packages", i)
            entries = at.mapping(value, {"name": str, "url": str}, required=("name", "url"))
            if "url" in entries:
                import_plugin(entries["url"], at)
        errors = len(self.at.problems.errors)
        for module in self.modules:
            module.resolve()
        if len(self.at.problems.errors) == errors:
            for modules in self.test_cases():
                for module in self.modules:
                    module.check_test_case(modules)

    def test_cases(self) -> list[dict[str, Module]]:
        choices = [
            (c.type, [Module(c.type, c.name, c.url, point, c.target) for point in c.combinations]) for c in self.modules
        ]
        return grid(choices)

    def hyperparameters(self) -> dict[str, set[str]]:
        """``<module type>-<name>``, in the order of the file, with the different values as texts."""
        found: dict[str, set[str]] = {}
        for module in self.modules:
            for point in module.combinations:
                for name, value in point.items():
                    found.setdefault(f"{module.type}-{name}", set()).add(repr(value))
        return found

    def varied(self) -> tuple[str, ...]:
        return tuple(name for name, values in self.hyperparameters().items() if len(values) > 1)


def warn_misplaced_mode(at: Section, mining_mode: str) -> None:
    """Warn of a mining mode outside the testenv file, as in many examples. Ianvs ignores it, too."""
    message = "has no effect here, as in Ianvs: set it in the testenv file. The mode of this job is"
    at.warn(f"{MODE_KEY} {message} {mining_mode}", MODE_KEY)
