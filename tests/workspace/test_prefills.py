"""A side that only read the prompt has answered nothing, and what is told of it is looked at as all that is read."""

from __future__ import annotations

from typing import Any

import pytest

from ianvs_specdec.records.response import check_response
from ianvs_specdec.workspace.sides import side_answer

READ: dict[str, Any] = {"seconds": 0.25, "issued": 1.0, "hardware": "h", "replayed": False, "key": "k"}


def test_what_was_only_read_is_no_answer() -> None:
    assert side_answer({"turns": [], "cost": 0.5, "prefill": READ}) is None
    assert side_answer({"turns": [{"completion": "B"}], "cost": 0.5}) is not None


def test_a_prefill_as_it_is_written_is_read() -> None:
    check_response({"turns": [], "prefill": READ})
    check_response({"turns": [], "prefill": {"seconds": 0.25}})


@pytest.mark.parametrize("prefill", [7, {"issued": 1.0}, {**READ, "seconds": -1}, {**READ, "issued": "x"}])
def test_a_damaged_one_is_refused(prefill: Any) -> None:
    with pytest.raises(ValueError, match=r"prefill"):
        check_response({"turns": [], "prefill": prefill})
