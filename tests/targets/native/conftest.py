"""The native step is tested where it could be built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ianvs_specdec.targets.native import build, library


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of libraries for all instruction sets of this processor."""
    if build.compiler() is None:
        pytest.skip("no C++ compiler")
    package = tmp_path_factory.mktemp("native")
    names = build.runnable(library._FOLDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "variants", lambda: {name: build.X86_VARIANTS[name] for name in names})
        assert build.build(package) is None
    return package / build.LIBRARIES


@pytest.fixture
def _every_variant(_compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable installation has the best instruction set only: the others are compiled for the tests."""
    monkeypatch.setattr(library, "_FOLDER", _compiled)
    for name in ("load", "variants"):
        monkeypatch.setattr(library, name, getattr(library, name).__wrapped__)


@pytest.fixture(autouse=True)
def _native(request: pytest.FixtureRequest) -> None:
    # How it is built, and what happens where it is not, needs no library.
    if request.path.name != "test_build.py" and (reason := library.unavailable_reason()) is not None:
        # With a compiler there is no excuse: sources that do not compile must not pass for a machine without one.
        assert build.compiler() is None, f"the native step is not there: {reason}"
        pytest.skip(f"no native step: {reason}")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
