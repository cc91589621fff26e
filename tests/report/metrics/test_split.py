"""Columns of split decoding, computed by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ianvs_specdec.common.types import SplitTrace
from ianvs_specdec.report.metrics import METRICS

TOLD = SplitTrace(
    rounds=4,
    in_flight=2,
    waits=2,
    drafting=0.1,
    hidden=0.1,
    ahead=4,
    hits=3,
    streamed=0,
    breaks=0,
    lost=0.0,
    alone=0,
    prefill=0.2,
    work=0.4,
)
"""With 11 tokens, ten of which the autoregressive stream takes 1 s for: 0.5 s more than work and drafting, which two
ways may take. Or three, with half of one for each draft sent ahead; then a quarter of the work is hidden."""
COLUMNS = ("Rounds per Answer", "Draft-Ahead Hit Rate", "Cloud Busy Time", "Break-Even Round Trip", "Recovery Time")


def row(told: SplitTrace | None, **baseline: Any) -> list[Any]:
    trace: dict[str, Any] = {"chunks": [(0.5, 1), (1.0, 5), (1.5, 5)], "steps": []}
    if told is not None:
        trace["split"] = msgspec.to_builtins(told)
    turn = {"completion": "", "trace": trace, "baseline": baseline or None, "key": None}
    result = {
        "side": "cloud",
        "turns": [turn],
        "usage": {"prompt_tokens": 1, "completion_tokens": 11},
        "scorer": "none",
    }
    return [True, result, None, result]


def columns(*rows: list[Any]) -> list[float]:
    return [METRICS[name]([None] * len(rows), list(rows)) for name in COLUMNS]


def test_each_is_a_ratio_of_sums() -> None:
    broken = SplitTrace(**{**msgspec.structs.asdict(TOLD), "breaks": 2, "lost": 3.0})
    assert columns(row(TOLD, token=0.1)) == pytest.approx([4, 0.75, 0.6 / 11, 0.2, math.nan], nan_ok=True)
    assert columns(row(TOLD, token=0.1), row(broken, token=0.1)) == pytest.approx([4, 0.75, 0.6 / 11, 0.2, 1.5])


@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        ({"waits": 4, "hidden": 0.0}, 0.5 / 4),
        ({"waits": 0}, (0.9 - 0.2) / 2),
        ({"hidden": 0.6}, (0.9 - 0.6 - 0.2) / 2),
    ],
    ids=["nothing sent ahead", "everything sent ahead", "drafting is the slower one"],
)
def test_break_even_round_trip(change: dict[str, Any], seconds: float) -> None:
    assert columns(row(replace(TOLD, **change), token=0.1))[3] == pytest.approx(seconds, rel=1e-5)


def test_unknown_values_are_undefined() -> None:
    unknown = replace(TOLD, prefill=None, work=None)
    assert columns(row(unknown, token=0.1)) == pytest.approx([4, 0.75, *[math.nan] * 3], nan_ok=True)
    assert math.isnan(columns(row(TOLD))[3])
    assert all(math.isnan(value) for value in columns(row(None, token=0.1)))
