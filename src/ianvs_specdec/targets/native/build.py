"""Compiles the native step, once for each instruction set, when the package is installed.

Only the standard library is imported: ``setup.py`` loads this file before the package and what it needs are there.
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
"""The folder beside this file that holds the libraries, or the reason why there are none."""
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
"""Where the compiler may fuse a product and a sum, the bits of a row would depend on the code around it."""
_SECONDS = 900
_COMPILERS = ("c++", "g++", "clang++")
_NO_COMPILER = (
    "no C++ compiler was found when the package was installed: install g++ or clang++, then the package again"
)


def library_name(variant: str) -> str:
    return f"specdec_{variant}.so"


def variants() -> dict[str, tuple[str, ...]]:
    """Names of the instruction sets that this kind of processor may have, and the compiler's flags."""
    return X86_VARIANTS if platform.machine().lower() in ("x86_64", "amd64") else {GENERIC: ()}


def fingerprint() -> str:
    """Of everything that decides what the libraries compute."""
    digest = hashlib.sha256(repr((X86_VARIANTS, FLAGS, SAME_ROUNDING)).encode())
    for file in sorted(SOURCES.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def build(package: Path, *, here: bool = False) -> str | None:
    """Fill ``package / LIBRARIES`` with the libraries, or with the reason why that failed, which is returned.

    ``here``: only the best one for this processor, which takes a few seconds. What was there is replaced as a whole,
    and kept where it was built from the same sources.
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
    """The instruction sets that this processor has, best first, as the library in ``place`` says. Raises ``OSError`` or
    ``AttributeError`` where it cannot be asked."""
    ask = ctypes.CDLL(str(place / library_name(PROCESSOR))).specdec_runnable
    ask.restype = ctypes.c_char_p
    return str(ask().decode()).split()


def compiler() -> list[str] | None:
    """The command of the C++ compiler: ``$CXX``, else the first usual one; None where there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named if shutil.which(named[0]) else None
    return next(([found] for name in _COMPILERS if (found := shutil.which(name))), None)


def _compile(place: Path, sources: str, here: bool) -> str | None:
    """The variants that the compiler knows, or the best of them, into ``place``; the reason where one of them fails."""
    command = compiler()
    if command is None:
        return _NO_COMPILER
    known = {name: flags for name, flags in variants().items() if not _run([*command, *_probe(flags)])}
    if GENERIC not in known:
        return f"the C++ compiler {command[0]} did not compile an empty file when the package was installed"

    def one(name: str, variant: str, files: Sequence[Path]) -> str | None:
        defined = [f"-DSPECDEC_VARIANT={variant}", f"-DSPECDEC_SOURCES={sources}"]
        options = [*FLAGS, SAME_ROUNDING, *known[variant], *defined, "-shared", f"-I{SOURCES}", "-x", "c++", "-"]
        # As one file, because half of the time goes into headers.
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
    told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return next((line for line in told if "error" in line), told[-1] if told else f"exit code {done.returncode}")
