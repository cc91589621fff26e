"""Where the native step cannot be compiled the package works without it, and says why in a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ianvs_specdec.targets.native import build, library


def compiler(folder: Path, script: str) -> Path:
    """A program that stands in for a compiler; ``$output`` is the file that it was told to write."""
    file = folder / "compiler"
    find = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && output=$2; shift; done\n'
    file.write_text(f"#!/bin/sh\n{find}{script}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loader looks into ``tmp_path / LIBRARIES``, and has not looked yet."""
    monkeypatch.setattr(library, "_FOLDER", tmp_path / build.LIBRARIES)
    for name in ("load", "variants", "unavailable_reason"):
        monkeypatch.setattr(library, name, getattr(library, name).__wrapped__)


def files(package: Path) -> list[str]:
    return sorted(file.relative_to(package).as_posix() for file in package.rglob("*") if file.is_file())


@pytest.mark.usefixtures("_fresh")
def test_without_a_compiler_the_reason_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = build.build(tmp_path)
    assert reason is not None
    assert "install g++ or clang++" in reason
    assert files(tmp_path) == [f"{build.LIBRARIES}/{build.REASON}"]
    assert library.unavailable_reason() == reason


@pytest.mark.usefixtures("_fresh")
def test_a_compiler_that_fails_half_way_leaves_nothing_but_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = (
        'case "$output" in "") ;; *avx512*) echo "specdec.h:7: error: out of memory" >&2; echo half >"$output"; exit 1'
    )
    monkeypatch.setenv("CXX", str(compiler(tmp_path, f'{half} ;; *) echo whole >"$output" ;; esac')))
    monkeypatch.setattr(build, "variants", lambda: build.X86_VARIANTS)
    package = tmp_path / "package"
    reason = build.build(package)
    assert reason is not None
    assert "out of memory" in reason
    assert "\n" not in reason
    assert files(package) == [f"{build.LIBRARIES}/{build.REASON}"]


def test_instruction_sets_that_the_compiler_does_not_know_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = compiler(tmp_path, '[ -z "$output" ] || echo >"$output"')
    old = f'#!/bin/sh\ncase "$*" in *amx*|*bf16*) exit 1 ;; esac\nexec "{inner}" "$@"\n'
    program = tmp_path / "old"
    program.write_text(old)
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    monkeypatch.setattr(build, "variants", lambda: build.X86_VARIANTS)
    assert build.build(tmp_path / "package") is None
    built = sorted(file.name for file in (tmp_path / "package" / build.LIBRARIES).glob("*.so"))
    assert built == [f"specdec_{name}.so" for name in ("avx2", "avx512", "generic", "processor")]


needs_library = pytest.mark.skipif(
    library.unavailable_reason() is not None, reason=f"no native step: {library.unavailable_reason()}"
)


@needs_library
@pytest.mark.usefixtures("_fresh")
def test_a_library_of_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(Path(library.__file__).with_name(build.LIBRARIES), tmp_path / build.LIBRARIES)
    assert library.unavailable_reason() is None
    monkeypatch.setattr(library, "fingerprint", lambda: "of other sources")
    assert "built from other sources: install the package again" in str(library.unavailable_reason())


@needs_library
@pytest.mark.usefixtures("_fresh")
def test_a_damaged_library_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / build.LIBRARIES
    folder.mkdir()
    (folder / build.library_name(build.PROCESSOR)).write_bytes(b"\x7fELF")
    assert "cannot be loaded" in str(library.unavailable_reason())


@needs_library
def test_the_best_instruction_set_is_loaded_unless_another_is_named() -> None:
    names = library.variants()
    assert set(names) <= set(build.variants())
    assert library.load().specdec_variant().decode() == names[0]
    for name in names:
        assert library.load(name).specdec_variant().decode() == name
    with pytest.raises(library.Unavailable, match="'sse9' is not among those here"):
        library.load("sse9")
