"""The numbers of a config.json: absurd ones are refused, and those of real families are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.numbers import check_numbers


@pytest.mark.parametrize(
    "config",
    [
        # As DeepSeek's, which state factors of rotations among the sizes.
        {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}},
        {"rope_parameters": {"rope_type": "yarn", "mscale_all_dim": 1.0, "rope_theta": 1e6}},
    ],
)
def test_numbers_of_real_families_are_possible(config: dict[str, Any]) -> None:
    check_numbers(Path("config.json"), config, {})


@pytest.mark.parametrize("value", [-1, 1.5, 10**12])
def test_sizes_are_whole_and_bounded(value: float) -> None:
    with pytest.raises(UserError, match="head_dim"):
        check_numbers(Path("config.json"), {"head_dim": value}, {})
