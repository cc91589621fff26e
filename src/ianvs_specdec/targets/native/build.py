"""Compile the native step for each instruction set, at installation.

Imports the standard library only: ``setup.py`` loads this file before the dependencies are installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "csrc"
LIBRARIES = "lib"
"""Folder of the libraries, or of the reason why there are none."""
REASON = "why_not.txt"
STAMP = "sources.txt"
GENERIC = "generic"
PROCESSOR = "processor"
"""The library that detects the processor's instruction sets."""

_AVX512 = ("-march=x86-64-v4",)
_BF16 = (*_AVX512, "-mavx512vnni", "-mavx512bf16")
X86_VARIANTS: dict[str, tuple[str, ...]] = {
    GENERIC: (),
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mmovbe"),
    "avx512": _AVX512,
    "avx512bf16": _BF16,
    "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
}
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread")
SAME_ROUNDING = "-ffp-contract=off"
"""Forbids fusing products and sums: the bits of a row would depend on the surrounding code."""
_SECONDS = 900
_COMPILERS = ("c++", "g++", "clang++")
_NO_COMPILER = (
    "no C++ compiler was found when the package was installed: install g++ or clang++, then the package again"
)


def library_name(variant: str) -> str:
    return f"specdec_{variant}.so"


def variants() -> dict[str, tuple[str, ...]]:
    """Instruction sets of this architecture -> compiler flags."""
    return X86_VARIANTS if platform.machine().lower() in ("x86_64", "amd64") else {GENERIC: ()}


def fingerprint() -> str:
    """A hash of the sources and compiler flags."""
    digest = hashlib.sha256(repr((X86_VARIANTS, FLAGS, SAME_ROUNDING)).encode())
    for file in sorted(SOURCES.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def build(package: Path, *, here: bool = False) -> str | None:
    """Compile the libraries into ``package / LIBRARIES``; on failure write the reason there, and return it.

    ``here``: only the best one for this processor, which takes a few seconds. An existing folder is replaced
    atomically, and kept if it was built from the same sources.
    """
    place, sources = package / LIBRARIES, fingerprint()
    stamp = place / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == sources:
        return None
    package.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package, prefix="lib-") as name:
        fresh = Path(name, LIBRARIES)
        fresh.mkdir()
        reason = _compile(fresh, sources, here)
        if reason is not None:
            shutil.rmtree(fresh)
            fresh.mkdir()
            (fresh / REASON).write_text(reason + "\n", encoding="utf-8")
        else:
            (fresh / STAMP).write_text(sources, encoding="utf-8")
        if place.exists():
            place.rename(Path(name, "old"))
        fresh.rename(place)
    return reason


def runnable(place: Path) -> list[str]:
    """The instruction sets of this processor, best first, detected by the library in ``place``. Raises ``OSError`` or
    ``AttributeError`` if it cannot be loaded."""
    ask = ctypes.CDLL(str(place / library_name(PROCESSOR))).specdec_runnable
    ask.restype = ctypes.c_char_p
    return str(ask().decode()).split()


def compiler() -> list[str] | None:
    """The command of the C++ compiler: ``$CXX``, else the first common one; None if there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named if shutil.which(named[0]) else None
    return next(([found] for name in _COMPILERS if (found := shutil.which(name))), None)


def _compile(place: Path, sources: str, here: bool) -> str | None:
    """Compile the variants that the compiler supports, or the best of them; returns the reason of a failure."""
    command = compiler()
    if command is None:
        return _NO_COMPILER
    known = {name: flags for name, flags in variants().items() if not _run([*command, *_probe(flags)])}
    if GENERIC not in known:
        return f"the C++ compiler {command[0]} did not compile an empty file when the package was installed"

    def one(name: str, variant: str, files: Sequence[Path]) -> str | None:
        defined = [f"-DSPECDEC_VARIANT={variant}", f"-DSPECDEC_SOURCES={sources}"]
        options = [*FLAGS, SAME_ROUNDING, *known[variant], *defined, "-shared", f"-I{SOURCES}", "-x", "c++", "-"]
        # As one file, since half of the time is spent on headers.
        everything = "".join(f'#include "{file.name}"\n' for file in sorted(files))
        return _run([*command, *options, "-o", str(place / library_name(name))], everything)

    failed = one(PROCESSOR, GENERIC, [SOURCES / "processor.cpp"])
    chosen = [next(name for name in runnable(place) if name in known)] if here and not failed else list(known)
    with ThreadPoolExecutor(os.cpu_count() or 1) as jobs:
        everywhere = list(SOURCES.glob("*.cpp"))
        failed = failed or next(filter(None, jobs.map(lambda variant: one(variant, variant, everywhere), chosen)), None)
    return failed and f"{command[0]} failed when the package was installed: {failed}"


def _probe(flags: Sequence[str]) -> list[str]:
    return [*FLAGS, *flags, "-fsyntax-only", "-x", "c++", os.devnull]


def _run(command: Sequence[str], given: str = "") -> str | None:
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else f"exit code {done.returncode}")
