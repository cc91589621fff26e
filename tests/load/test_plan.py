"""Options are validated before anything starts; errors have the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.plan import SweepPlan
from tests.support.paths import EXAMPLE

SETTINGS = str(EXAMPLE / "testalgorithms/query-routing/cloud_settings.yaml")
RUNNING = {"url": "http://127.0.0.1:1", "model": "m"}
STARTED = {"settings": SETTINGS, "policies": "fixed:0"}


def parsed(questions: Path, server: dict[str, Any] = RUNNING, **more: Any) -> SweepPlan:
    return SweepPlan.parse({**server, "rates": "1,2", "data": str(questions), **more})


def test_strings_and_yaml_are_equivalent(data: Path) -> None:
    policies = ("fixed:0", "4", "table:[[1,4,5],[5,9,0]]")
    text = parsed(data, STARTED, policies=", ".join(policies), slo="ttft=0.5")
    plain = parsed(data, STARTED, policies=["fixed:0", 4, policies[2]], rates=[2, 1.0], slo={"ttft": 0.5})
    assert text == plain
    assert (text.rates, text.policies) == ((1.0, 2.0), policies)


@pytest.mark.parametrize(
    ("more", "key", "part"),
    [
        ({"rates": "1,1"}, "rates", "different from each other"),
        ({"slo": "ttft=0"}, "slo", "ttft must be a number above 0, not 0"),
        ({"slo": "ttft=0.5,ttft=2"}, "slo", "must give each value once, not 'ttft=0.5,ttft=2'"),
        ({"duration": "nan"}, "duration", "more than 0 seconds"),
        ({"duration": 5, "warmup": 5}, "warmup", "leaves nothing"),
        ({"max_tokens": 1.5}, "max_tokens", "whole number from 1"),
        ({"repeats": 101}, "repeats", "whole number from 1 to 100"),
        ({"temperature": -1}, "temperature", "0 (greedy) or more"),
        ({"arrivals": "posson"}, "arrivals", "no file posson; a pattern is one of poisson"),
        ({"api_key_env": "sk-1"}, None, "must be the name of an environment variable"),
    ],
)
def test_invalid_options(data: Path, more: dict[str, Any], key: str | None, part: str) -> None:
    with pytest.raises(UserError) as raised:
        parsed(data, **more)
    assert part in str(raised.value)
    assert key is None or raised.value.key == key


def test_exactly_one_server(data: Path) -> None:
    for server, part in (
        (RUNNING | STARTED, "give --url of a running server"),
        ({"url": "http://127.0.0.1:1"}, "--model is missing"),
        ({"settings": SETTINGS}, "--policies is missing"),
        ({**STARTED, "policies": "fixed:0,,"}, "different from each other"),
        ({**STARTED, "model": "m"}, "model goes with --url"),
    ):
        with pytest.raises(UserError) as raised:
            parsed(data, server)
        assert part in str(raised.value)


def test_identity_includes_file_contents(data: Path) -> None:
    before = parsed(data, STARTED).to_json()
    assert parsed(data, STARTED).to_json() == before
    data.write_text(data.read_text() + data.read_text())
    assert parsed(data, STARTED).to_json() != before
