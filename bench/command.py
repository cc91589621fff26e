"""Helpers of the bench commands: reports, tables, argument parsers, interleaving."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tabulate import tabulate

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.storage.cells import csv_text
from ianvs_specdec.records.identity import machine

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cloud-edge-speculative-decoding"
SETS = tuple(EXAMPLE / "dataset" / name / "test.jsonl" for name in ("knowledge", "open-ended"))
"""Default questions."""
AUTOREGRESSIVE = "ours autoregressive"
"""The baseline row."""
ESTIMATE = ("value", "low", "high")
Entry = TypeVar("Entry")


Report = dict[str, Any]
Files = Mapping[str, Callable[[Report], str]]
"""File name -> function that renders the report."""


def command(name: str, measured: Callable[[], Report], out: Path, table: Callable[[Report], str], files: Files) -> int:
    """Print the report of ``measured`` as a ``table`` and write the ``files`` to ``out``; returns the exit status."""
    try:
        report = measured()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    print(table(report))
    out.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_atomically(out / file, content(report))
        print(f"written: {out / file}")
    return 0


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column is left-aligned, the others are right-aligned."""
    sides = ("left", *["right"] * (len(heads) - 1))
    return tabulate(rows, heads, tablefmt="plain", disable_numparse=True, colalign=sides).splitlines()


def to_json(report: Mapping[str, Any]) -> str:
    return json.dumps(report, indent=1, default=str) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV of rows of numbers, strings and estimates. An estimate has three columns: NAME, NAME_low and NAME_high."""
    flat = [dict(cell for name, value in row.items() for cell in _cells(name, value)) for row in rows]
    return csv_text([list(flat[0]), *(list(row.values()) for row in flat)])


def _cells(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for part in ESTIMATE:
            yield name if part == "value" else f"{name}_{part}", f"{value[part]:.4f}"
    else:
        yield name, "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def environment() -> dict[str, Any]:
    """Machine, versions, and torch's threads and instruction set in this process."""
    import torch

    from ianvs_specdec.backends.local import instructions

    here = dict(machine())
    return {**here, **here.pop("versions"), "threads": torch.get_num_threads(), **instructions()}


def interval(estimate: Mapping[str, float], digits: int = 2) -> str:
    return f"[{estimate['low']:.{digits}f}, {estimate['high']:.{digits}f}]"


def ratio_line(what: str, estimate: Mapping[str, float]) -> str:
    return f"{what}: {estimate['value']:.2f} {interval(estimate)}"


def numbers(text: str) -> list[int]:
    """Parse comma-separated positive integers; returns them sorted."""
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers from 1, such as 1,4,8")
    return sorted({int(part) for part in text.split(",")})


def words(*known: str) -> Callable[[str], list[str]]:
    """A parser of comma-separated words among ``known``."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(known)}")
        return names

    return parse


@contextmanager
def attempted(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Record in ``failed`` why a row fails; only a failing baseline ends the measurement."""
    try:
        yield
    except Exception as error:
        if name.startswith(AUTOREGRESSIVE):
            raise
        failed[name] = " ".join(str(error).split()) or type(error).__name__


def interleaved(entries: Sequence[Entry], prompts: int, repeats: int) -> Iterator[tuple[int, Entry]]:
    """Every entry on every prompt, ``repeats`` times, as (index of the prompt, entry), in rotating order (A B C, then B
    C A), so that drift of the machine and order affect all alike."""
    for done in range(repeats * prompts):
        if sys.stderr.isatty():
            end = "\n" if done + 1 == repeats * prompts else ""
            print(f"\r{done + 1}/{repeats * prompts} prompts", end=end, file=sys.stderr, flush=True)
        turn = done % len(entries)
        for entry in (*entries[turn:], *entries[:turn]):
            yield done % prompts, entry
