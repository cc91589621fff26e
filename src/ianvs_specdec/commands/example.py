"""``specdec example``: copy the example's models, data and YAML files.

``setup.py`` imports this module: it needs only the standard library and ``errors``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from pathlib import Path

from ianvs_specdec.common.errors import UserError

EXAMPLE = Path("examples", "cloud-edge-speculative-decoding")
"""The example's path in the repository, in the package of a wheel, and in the user's folder. The paths in its YAML
files begin with it."""

JOB = "benchmarkingjob.yaml"
PACKAGE = Path(__file__).resolve().parents[1]
REPOSITORY = Path(__file__).resolve().parents[3]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help=f"gets {EXAMPLE.as_posix()}; made if it is not there")


def run(options: argparse.Namespace) -> int:
    target = options.folder / EXAMPLE
    if os.path.lexists(target):
        raise UserError(f"{target} is there already: name another folder, or move it away")
    source = installed()
    files = contents(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        for file in files:
            (unfinished / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, unfinished / file)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    size = sum((target / file).stat().st_size for file in files)
    summary = f"{target}: {len(files)} files, {size / 1e6:.1f} MB. To run it:"
    print(summary, f"cd {shlex.quote(str(options.folder))}", f"ianvs -f {(EXAMPLE / JOB).as_posix()}", sep="\n")
    return 0


def installed() -> Path:
    """The example's folder in this installation. Raises UserError if it is missing."""
    for home in (PACKAGE, REPOSITORY):
        if (home / EXAMPLE / JOB).is_file():
            return home / EXAMPLE
    raise UserError(
        f"this installation of ianvs-specdec lacks the example ({PACKAGE / EXAMPLE}): install a wheel that `make dist` "
        "builds, or the repository with pip install -e"
    )


def contents(folder: Path) -> list[Path]:
    """The example's files in ``folder``, relative to it, without bytecode, hidden files, and data sets that ``specdec
    data prepare`` wrote to ``dataset``."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [
        file
        for file in files
        if not any(part.startswith(".") or part == "__pycache__" for part in file.parts)
        and not (len(file.parts) == 2 and file.parts[0] == "dataset" and file.suffix == ".jsonl")
    ]
