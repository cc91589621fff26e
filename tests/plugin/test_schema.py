"""The JSON schema of settings files, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ianvs_specdec.plugin.schema import schema
from ianvs_specdec.plugin.settings import names
from tests.support.paths import EXAMPLE

FOLDER = EXAMPLE / "testalgorithms" / "query-routing"
FILE = FOLDER / "model_settings.schema.json"
SETTINGS = sorted(FOLDER.glob("*_settings*.yaml"))


def valid(settings: Any) -> bool:
    return bool(jsonschema.Draft7Validator(schema()).is_valid(settings))


def test_the_shipped_schema_is_up_to_date() -> None:
    """Else: python -m ianvs_specdec.plugin.schema > FILE."""
    jsonschema.Draft7Validator.check_schema(schema())
    assert json.loads(FILE.read_text(encoding="utf-8")) == schema()
    assert set(schema()["properties"]) == set(names())


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.name)
def test_the_settings_of_the_example_are_valid(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# yaml-language-server: $schema={FILE.name}\n")
    assert valid(yaml.safe_load(text))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_token": 5},
        {"temperature": [0.0]},
        {"backend": "EagleSpecDecoding"},
        {"tree": {"EagleSpecDec": "chains"}},
        {"tree": {"Eagle": "chain"}},
    ],
)
def test_invalid_settings_are_errors(wrong: dict[str, Any]) -> None:
    assert not valid(wrong)


def test_null_and_values_by_back_end_are_valid() -> None:
    assert valid({"seed": None, "stop": "###", "tree": {"EagleSpecDec": "chain", "MedusaSpecDec": "static"}})
