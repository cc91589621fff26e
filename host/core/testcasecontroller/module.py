"""Modules of an algorithm: class, file and hyperparameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from core.common.constant import CLOUD, DRAFTER, EDGE, MODULES, PROCESSOR, ROUTER, VERIFIER
from core.common.document import MAX_TEST_CASES, Document, describe
from core.common.errors import NEARER, PLUGIN_ERRORS, explain, hint, nearest
from core.common.plugins import resolve_alias
from core.common.section import Section
from core.testcasecontroller.upstream import would_fail
from sedna.common.class_factory import ClassFactory, ClassType
from sedna.common.utils import copy_tree
from sedna.core.joint_inference.joint_inference import DRAFTER_METHODS, VERIFIER_METHODS

OTHERS = "other_hyperparameters"
"""Name of a hyperparameter that lists files of hyperparameters."""
ORACLE = "OracleRouter"
INJECTED = (EDGE, CLOUD)
"""Modules that the router ORACLE gets as further keyword arguments."""

METHODS: dict[str, tuple[str, ...]] = {
    PROCESSOR: ("__call__",),
    EDGE: ("predict",),
    CLOUD: ("inference",),
    ROUTER: ("__call__",),
    DRAFTER: DRAFTER_METHODS,
    VERIFIER: VERIFIER_METHODS,
}
"""Required methods per module type."""


@dataclass(frozen=True)
class Module:
    type: str
    name: str
    url: str
    hyperparameters: dict[str, Any]
    target: Any

    def create(self, **injected: Any) -> Any:
        return self.target(**copy_tree(self.hyperparameters), **injected)


@dataclass
class ModuleConfig:
    """A module of an algorithm file. ``combinations``: a dict of hyperparameters per point of the grid."""

    at: Section
    type: str = ""
    name: str = ""
    url: str = ""
    combinations: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    places: dict[str, Section] = field(default_factory=dict)
    target: Any = None

    @classmethod
    def parse(cls, at: Section, value: Any) -> ModuleConfig:
        known = {"type": MODULES, "name": str, "url": str, "hyperparameters": list}
        entries = at.mapping(value, known, required=("type", "name"))
        config = cls(at, entries.get("type", ""), entries.get("name", ""), entries.get("url", ""))
        config._parse_hyperparameters(entries.get("hyperparameters", []))
        return config

    def _parse_hyperparameters(self, items: list[Any]) -> None:
        choices: dict[str, list[Any]] = {}
        base: dict[str, Any] = {}
        for i, item in enumerate(items):
            at = self.at.at("hyperparameters", i)
            if not isinstance(item, dict) or len(item) != 1 or not all(isinstance(name, str) for name in item):
                at.add(f"a hyperparameter is written '- NAME: {{values: [...]}}', got {describe(item)}")
                continue
            ((name, body),) = item.items()
            entries = at.at(name).mapping(body, {"values": list}, required=("values",))
            if entries.get("values") == []:
                at.add(f"{name} has no values, so there is no test case", name)
            elif "values" in entries and name == OTHERS:
                base.update(self._other_hyperparameters(entries["values"], at.at(name, "values")))
            elif nearest(name, (OTHERS,), NEARER):
                at.add(f"unknown key {name!r} in hyperparameters. Did you mean {OTHERS!r}?", name)
            elif name in choices:
                at.add(f"duplicate hyperparameter {name!r} in {self.type} {self.name}")
            elif "values" in entries:
                self.places[name] = at.at(name)
                choices[name] = list({repr(value): value for value in entries["values"]}.values())
                if len(choices[name]) < len(entries["values"]):
                    at.warn(f"a value of {name} is a duplicate: it runs once", name, "values")
        if (count := math.prod(map(len, choices.values()))) > MAX_TEST_CASES:
            message = f"{count:,} combinations of hyperparameters: the maximum is {MAX_TEST_CASES:,}"
            self.at.add(message, "hyperparameters")
            choices = {}
        self.combinations = [{**base, **point} for point in grid(list(choices.items()))]

    def _other_hyperparameters(self, urls: list[Any], at: Section) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for i, url in enumerate(urls):
            file = at.find(str(url), i)
            if file is None:
                continue
            other = Document(file)
            if not isinstance(other.data, dict):
                message = "a file of other hyperparameters must be a mapping of names to values"
                at.problems.add(f"{file}:1", message)
                continue
            for name, value in other.data.items():
                values[str(name)] = value
                self.places[str(name)] = Section(other, at.problems, (str(name),))
        return values

    def resolve(self) -> None:
        """Import the file and find the class. This is the first step that runs code of the plugin."""
        kind = ClassType.HEM if self.type == ROUTER else ClassType.GENERAL
        if not self.url:
            self._resolve_built_in(kind)
            return
        self.target = resolve_alias(kind, self.name, self.url, self.at)
        if self.target is not None:
            self._check_methods()
            self._check_names()
            for message in would_fail(self.type, self.target):
                self.at.fails_upstream(f"{self.type} {self.name}: {message}", "name")

    def _resolve_built_in(self, kind: str) -> None:
        import sedna.algorithms.hard_example_mining as built_in

        found = ClassFactory.everything() if kind == ClassType.HEM else ()
        routers = {alias: r.cls for _, alias, r in found if r.module == built_in.__name__}
        self.target = routers.get(self.name)
        if self.target is None:
            known = hint(self.name, routers, "Routers without url")
            self.at.add(f"the key 'url' is missing, the file of {self.type} {self.name}.{known}")

    def _check_methods(self) -> None:
        if not isinstance(self.target, type):
            return
        defined = {name for base in self.target.__mro__[:-1] for name in vars(base)}
        missing = [method for method in METHODS[self.type] if method not in defined]
        if missing:
            self.at.add(f"{self.type} {self.name} has no method {' and no '.join(missing)}", "name")
        if self.type == EDGE and "__call__" in defined:
            self.at.add(f"{self.name} defines __call__: Sedna would call the model as a factory", "name")

    def _check_names(self) -> None:
        """Check names against the constructor's signature, then call ``check_hyperparameters`` of the class."""
        given = sorted({name for point in self.combinations for name in point})
        named, needed, anything = _parameters(self.target)
        for name in given:
            if not anything and name not in named:
                self.places.get(name, self.at).add(
                    f"unknown hyperparameter {name!r} of {self.name}.{hint(name, named)}"
                )
        for name in needed:
            if name not in given and not (self.name == ORACLE and name in INJECTED):
                self.at.add(f"{self.type} {self.name} needs the hyperparameter {name!r}")
        check = getattr(self.target, "check_hyperparameters", None)
        if callable(check):
            for point in self.combinations:
                self._once(check, copy_tree(point))

    def check_test_case(self, modules: dict[str, Module]) -> None:
        """Call ``check_test_case`` of the class."""
        check = getattr(self.target, "check_test_case", None)
        if callable(check):
            others = {kind: (module.target, copy_tree(module.hyperparameters)) for kind, module in modules.items()}
            self._once(check, copy_tree(modules[self.type].hyperparameters), others)

    def build_router(self) -> None:
        """Build and clean up a router with each combination to find constructor errors, unless it needs the models or
        has ``built_by_check = False``."""
        if self.type != ROUTER or self.name == ORACLE:
            return
        if getattr(self.target, "built_by_check", True):
            for point in self.combinations:
                self._once(self._build, copy_tree(point))

    def _build(self, point: dict[str, Any]) -> None:
        router = self.target(**point)
        if hasattr(router, "cleanup"):
            router.cleanup()

    def _once(self, check: Callable[..., object], *given: Any) -> None:
        """Call a check of a class, unless it has passed with the same values before in this job."""
        call = f"{getattr(check, '__name__', '')} {id(self.target)} {given!r}"
        if call in self.at.problems.passed:
            return
        try:
            check(*given)
            self.at.problems.passed.add(call)
        except PLUGIN_ERRORS as error:
            for one in (error, *getattr(error, "others", ())):
                key = getattr(one, "key", None) or self._named_in(str(one))
                self.places.get(str(key), self.at).add_quoted(f"{self.type} {self.name}: {explain(one)}")

    def _named_in(self, message: str) -> str | None:
        """The hyperparameter that a message names, or the only one that there is."""
        named = [name for name in self.places if name in message] or list(self.places)
        return named[0] if len(named) == 1 else None


def grid(choices: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """The Cartesian product of ``(name, values)`` pairs, the last name varying fastest; ``[{}]`` for none."""
    names = [name for name, _ in choices]
    return [dict(zip(names, point, strict=True)) for point in product(*(values for _, values in choices))]


def _parameters(target: Any) -> tuple[list[str], list[str], bool]:
    """Names of a constructor's parameters, those without a default, and whether it accepts others."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return [], [], True
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in named if p.default is p.empty]
    return [p.name for p in named], needed, any(p.kind is p.VAR_KEYWORD for p in parameters)
