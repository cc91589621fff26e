"""Mark parametrized cases slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_unless(cases: Iterable[Any], fast: Callable[[Any], bool]) -> list[Any]:
    """``cases`` for ``parametrize``; those for which ``fast`` returns False are marked ``slow``. A case of several
    values is a tuple."""
    return [
        case if fast(case) else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
