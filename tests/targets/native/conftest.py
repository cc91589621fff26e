"""Skip tests of the native step without a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ianvs_specdec.targets.native import build, library


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of libraries for all variants of this processor."""
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
    """Compile all variants: an editable installation has only the best one."""
    monkeypatch.setattr(library, "_FOLDER", _compiled)
    for name in ("load", "variants"):
        monkeypatch.setattr(library, name, getattr(library, name).__wrapped__)


@pytest.fixture(autouse=True)
def _native(request: pytest.FixtureRequest) -> None:
    # The tests of the build need no library.
    if request.path.name != "test_build.py" and (reason := library.unavailable_reason()) is not None:
        # With a compiler, a failed build is an error.
        assert build.compiler() is None, f"the native step is not there: {reason}"
        pytest.skip(f"no native step: {reason}")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
