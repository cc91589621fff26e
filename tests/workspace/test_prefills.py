"""A prefill is not an answer, and its fields are validated."""

from __future__ import annotations

from typing import Any

import pytest

from ianvs_specdec.records.response import check_response
from ianvs_specdec.workspace.sides import side_answer

READ: dict[str, Any] = {"seconds": 0.25, "issued": 1.0, "hardware": "h", "replayed": False, "key": "k"}


def test_a_prefill_is_no_answer() -> None:
    assert side_answer({"turns": [], "cost": 0.5, "prefill": READ}) is None
    assert side_answer({"turns": [{"completion": "B"}], "cost": 0.5}) is not None


def test_a_written_prefill_is_valid() -> None:
    check_response({"turns": [], "prefill": READ})
    check_response({"turns": [], "prefill": {"seconds": 0.25}})


@pytest.mark.parametrize("prefill", [7, {"issued": 1.0}, {**READ, "seconds": -1}, {**READ, "issued": "x"}])
def test_a_damaged_prefill_is_rejected(prefill: Any) -> None:
    with pytest.raises(ValueError, match=r"prefill"):
        check_response({"turns": [], "prefill": prefill})
