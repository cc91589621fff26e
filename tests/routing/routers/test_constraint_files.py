"""The example's files of routers with a constraint: what is in them can be run, what is commented out can, too."""

from __future__ import annotations

import importlib
import importlib.util
import re
from typing import Any

import pytest
import yaml

from ianvs_specdec.routing.routers import router
from ianvs_specdec.routing.routers.constrained import ConstrainedRouter
from tests.support.paths import EXAMPLE

FOLDER = EXAMPLE / "testalgorithms" / "query-routing"
FILES = ("budget_router", "latency_router", "resource_router", "privacy_router")


def hyperparameters(text: str) -> tuple[str, dict[str, Any]]:
    modules = yaml.safe_load(text)["algorithm"]["modules"]
    module = next(module for module in modules if module["type"] == "hard_example_mining")
    return module["name"], {
        name: value["values"][0] for entry in module["hyperparameters"] for name, value in entry.items()
    }


@pytest.fixture(scope="module", autouse=True)
def what_the_shipped_router_imports() -> None:
    """Seconds in themselves, which are no test's."""
    importlib.import_module("ianvs_specdec.routing.learned.transformer_model")


@pytest.mark.parametrize("name", FILES)
def test_the_file_builds_a_router(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parents[3])
    if name == "resource_router":
        pytest.importorskip("psutil", reason="needs the extra resources")
    alias, given = hyperparameters((FOLDER / f"{name}.yaml").read_text())
    kind = router(alias)
    assert issubclass(kind, ConstrainedRouter)
    kind.check_hyperparameters(given)
    kind(**given)({"query": "What?", "index": 0})


@pytest.mark.parametrize("name", ["budget_router", "latency_router", "privacy_router"])
def test_what_is_commented_out_is_right_as_well(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parents[3])
    text = (FOLDER / f"{name}.yaml").read_text()
    before, after = text.split('type: "hard_example_mining"')
    after = re.sub(r"^( *)# (- [a-z_0-9]+:$| {4}values:$| {6}- )", r"\1\2", after, flags=re.MULTILINE)
    alias, given = hyperparameters(before + 'type: "hard_example_mining"' + after)
    assert len(given) > len(hyperparameters(text)[1])
    if name == "budget_router":
        assert given.pop("cloud_share")
    if name == "privacy_router" and importlib.util.find_spec("presidio_analyzer") is None:
        assert isinstance(given.pop("detector"), str)
    router(alias).check_hyperparameters(given)
