"""The picture of the curves."""

from __future__ import annotations

import pytest

from ianvs_specdec.routing.evaluation.plot import COLOURS, colours


@pytest.mark.parametrize("count", [0, 1, len(COLOURS), len(COLOURS) + 1, 60])
def test_every_router_has_a_colour_of_its_own(count: int) -> None:
    pytest.importorskip("matplotlib")
    assert len(set(colours(count))) == len(colours(count)) == count
