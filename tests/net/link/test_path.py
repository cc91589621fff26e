"""Paths are parsed from strings with units; errors have the key."""

from __future__ import annotations

from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.link import Path
from ianvs_specdec.net.link.path import PRESETS, Schedule


def test_parse_units() -> None:
    given = {"delay": "25ms", "jitter": "500us", "up": "10mbit", "down": "1.5Gbit/s", "loss": "0.5%", "seed": "3"}
    path = Path.parse({**given, "outage": "10s/2min"})
    assert path == Path(0.025, 0.0005, 10e6, 1.5e9, 0.005, outage=Schedule(10, period=120), seed=3)


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    assert Path.parse({"preset": name}).preset == name


def test_options_override_preset() -> None:
    path = Path.parse({"preset": "lte", "delay": "100ms", "up": "unlimited", "loss": 0})
    own = Path.parse({"preset": "lte"})
    assert (path.delay, path.up, path.loss) == (0.1, None, 0.0)
    assert (path.jitter, path.down) == (own.jitter, own.down)


@pytest.mark.parametrize("text", ["none", "10s@30s", "10s/120s", "random:0.5s/4s"])
def test_outage_round_trip(text: str) -> None:
    assert str(Path.parse({"outage": text}).outage) == text


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("delay", "-1ms", "delay must be from 0 to 60 s"),
        ("delay", "25", "delay must be written as 25ms or 0.5s, not '25'"),
        ("delay", 0.025, "delay must be written as 25ms"),
        ("delay", "1.2.3ms", "delay must be written as 25ms"),
        ("delay", True, "delay must be written as 25ms"),
        ("jitter", "1ms", "jitter (0.001 s) must not exceed the delay (0 s)"),
        ("up", "0bit", "up must be from 1kbit"),
        ("down", "10mbps", "down must be written as 10mbit or unlimited"),
        ("loss", "100%", "loss must be from 0 % to below 100 % (--outage"),
        ("loss", "0.5", "loss must be written as 0.5%"),
        ("outage", "10s", "outage must be written as 10s/120s"),
        ("outage", "20s/10s", "the outage must be shorter than its period"),
        ("outage", "0s/10s", "outage must be from more than 0 s"),
        ("on_outage", "drop", "unknown on_outage 'drop'"),
        ("seed", "many", "seed must be a whole number from 0"),
        ("preset", "lt", "unknown preset 'lt'. Did you mean 'lte'? Known: 5g, fibre, lan, lte, none, satellite-geo"),
        ("dely", "1ms", "unknown option of a path 'dely'. Did you mean 'delay'?"),
    ],
)
def test_invalid_values(key: str, value: Any, part: str) -> None:
    with pytest.raises(UserError) as told:
        Path.parse({key: value})
    assert part in str(told.value)
    assert told.value.key == key
