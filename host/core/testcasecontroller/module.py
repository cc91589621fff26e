"""One module of an algorithm: which class, from which file, with which hyperparameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from core.common.constant import CLOUD, DRAFTER, EDGE, MODULES, PROCESSOR, ROUTER, VERIFIER
from core.common.document import MOST_TEST_CASES, Document, describe
from core.common.errors import NEARER, PLUGIN_ERRORS, explain, hint, nearest
from core.common.plugins import resolve_alias
from core.common.section import Section
from core.testcasecontroller.upstream import would_fail
from sedna.common.class_factory import ClassFactory, ClassType
from sedna.common.utils import copy_tree
from sedna.core.joint_inference.joint_inference import DRAFTER_METHODS, VERIFIER_METHODS

OTHERS = "other_hyperparameters"
"""In place of a hyperparameter: the names of files of them."""
ORACLE = "OracleRouter"
INJECTED = (EDGE, CLOUD)
"""A router of the name ORACLE gets the two models as keyword arguments beside its hyperparameters."""

METHODS: dict[str, tuple[str, ...]] = {
    PROCESSOR: ("__call__",),
    EDGE: ("predict",),
    CLOUD: ("inference",),
    ROUTER: ("__call__",),
    DRAFTER: DRAFTER_METHODS,
    VERIFIER: VERIFIER_METHODS,
}
"""What a class must define to serve as a module of the type."""


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
    """A module as the algorithm file describes it; ``combinations``: one dict of hyperparameters per grid point."""

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
                at.add(f"{name} has no values: there is no test case", name)
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
        if (count := math.prod(map(len, choices.values()))) > MOST_TEST_CASES:
            message = f"{count:,} combinations of hyperparameters: more than {MOST_TEST_CASES:,} are not run"
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
        """Import the file and find the class: the first step that runs the plugin's code, and its imports only."""
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
            known = hint(self.name, routers, "Routers that need none")
            self.at.add(f"the key 'url' is missing: in which file is {self.type} {self.name}?{known}")

    def _check_methods(self) -> None:
        if not isinstance(self.target, type):
            return
        defined = {name for base in self.target.__mro__[:-1] for name in vars(base)}
        missing = [method for method in METHODS[self.type] if method not in defined]
        if missing:
            self.at.add(f"{self.type} {self.name} has no method {' and no '.join(missing)}", "name")
        if self.type == EDGE and "__call__" in defined:
            self.at.add(f"{self.name} defines __call__: Sedna would use the model as a factory", "name")

    def _check_names(self) -> None:
        """Names against the constructor's signature, then the class's own ``check_hyperparameters``, if it has one."""
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

    def check_beside(self, modules: dict[str, Module]) -> None:
        check = getattr(self.target, "check_test_case", None)
        if callable(check):
            others = {kind: (module.target, copy_tree(module.hyperparameters)) for kind, module in modules.items()}
            self._once(check, copy_tree(modules[self.type].hyperparameters), others)

    def build_router(self) -> None:
        """Build and clean up a router with each of its combinations, to find errors of its constructor. One that needs
        the models, or has ``built_by_check = False``, is not built."""
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
        """Call a class's own check, unless it has passed with the same values in another algorithm of this job."""
        question = f"{getattr(check, '__name__', '')} {id(self.target)} {given!r}"
        if question in self.at.problems.passed:
            return
        try:
            check(*given)
            self.at.problems.passed.add(question)
        except PLUGIN_ERRORS as error:
            for fault in (error, *getattr(error, "others", ())):
                key = getattr(fault, "key", None) or self._blamed(str(fault))
                self.places.get(str(key), self.at).add_quoted(f"{self.type} {self.name}: {explain(fault)}")

    def _blamed(self, message: str) -> str | None:
        """The hyperparameter that a message is about: the one that it names, or the only one there is."""
        named = [name for name in self.places if name in message] or list(self.places)
        return named[0] if len(named) == 1 else None


def grid(choices: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """The Cartesian product of ``(name, values)`` pairs, the last name varying fastest; ``[{}]`` for none."""
    names = [name for name, _ in choices]
    return [dict(zip(names, point, strict=True)) for point in product(*(values for _, values in choices))]


def _parameters(target: Any) -> tuple[list[str], list[str], bool]:
    """Names of a constructor's parameters, those without a default, and whether it takes any other."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return [], [], True
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in named if p.default is p.empty]
    return [p.name for p in named], needed, any(p.kind is p.VAR_KEYWORD for p in parameters)
