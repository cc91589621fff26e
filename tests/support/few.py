"""A few cases fast, the many slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], fast: Callable[[Any], bool]) -> list[Any]:
    """``cases`` for ``parametrize``, with the mark ``slow`` on those for which ``fast`` is false. A case of several
    values is a tuple."""
    return [
        case if fast(case) else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
