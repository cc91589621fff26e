"""The native step is tested where it could be built."""

from __future__ import annotations

import pytest

from ianvs_specdec.targets.native import build, library


@pytest.fixture(autouse=True)
def _native(request: pytest.FixtureRequest) -> None:
    # How it is built, and what happens where it is not, needs no library.
    if request.path.name != "test_build.py" and (reason := library.why_not()) is not None:
        # With a compiler there is no excuse: sources that do not compile must not pass for a machine without one.
        assert build.compiler() is None, f"the native step is not there: {reason}"
        pytest.skip(f"no native step: {reason}")
