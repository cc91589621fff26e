"""The native step is tested where it could be built."""

from __future__ import annotations

import pytest

from ianvs_specdec.decoding.native import library


@pytest.fixture(autouse=True)
def _native(request: pytest.FixtureRequest) -> None:
    # How it is built, and what happens where it is not, needs no library.
    if request.path.name != "test_build.py" and library.why_not() is not None:
        pytest.skip(f"no native step: {library.why_not()}")
