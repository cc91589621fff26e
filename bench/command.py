"""What the commands that compare methods have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from bench.report import table, write
from ianvs_specdec.common.errors import UserError

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cloud-edge-speculative-decoding"
SETS = tuple(EXAMPLE / "dataset" / name / "test.jsonl" for name in ("knowledge", "open-ended"))
"""Questions where the user names none."""

AUTOREGRESSIVE = "ours autoregressive"
Entry = TypeVar("Entry")


def command(
    name: str,
    measured: Callable[[], dict[str, Any]],
    out: Path,
    table: Callable[[dict[str, Any]], str] = table,
    write: Callable[[Path, dict[str, Any]], list[Path]] = write,
) -> int:
    """Print the report that ``measured`` makes as a ``table``, and ``write`` it to ``out``; returns the exit status."""
    try:
        report = measured()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    print(table(report))
    for path in write(out, report):
        print(f"written: {path}")
    return 0


def numbers(text: str) -> list[int]:
    """Whole numbers from 1, separated by commas, in order."""
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers from 1, such as 1,4,8")
    return sorted({int(part) for part in text.split(",")})


def parsed(parser: argparse.ArgumentParser, argv: list[str] | None, *positive: str) -> argparse.Namespace:
    """The options; those in ``positive`` must be at least 1."""
    options = parser.parse_args(argv)
    for name in positive:
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    options.prompts = options.prompts or list(SETS)
    return options


def progress(done: int, count: int, what: str) -> None:
    """Say how far a measurement has come, where somebody looks."""
    if sys.stderr.isatty():
        end = "\n" if done == count else ""
        print(f"\r{done}/{count} {what}", end=end, file=sys.stderr, flush=True)


@contextmanager
def attempted(name: str, failed: dict[str, str]) -> Iterator[None]:
    """What is done inside for a row: why it fails is noted, and ends nothing unless all are compared with it."""
    try:
        yield
    except Exception as error:
        if name.startswith(AUTOREGRESSIVE):
            raise
        failed[name] = " ".join(str(error).split()) or type(error).__name__


def interleaved(entries: Sequence[Entry], prompts: int, repeats: int) -> Iterator[tuple[int, Entry]]:
    """Every entry on every prompt, ``repeats`` times, as (place of the prompt, entry): A B C, then B C A ..., so that
    drift of the machine hits all alike, and each goes first as often as any other.
    """
    for done in range(repeats * prompts):
        progress(done + 1, repeats * prompts, "prompts")
        turn = done % len(entries)
        for entry in (*entries[turn:], *entries[:turn]):
            yield done % prompts, entry


def compared(
    files: Sequence[Path], prompts: Sequence[Sequence[int]], pairs: Sequence[tuple[str, str]], runs: Any
) -> dict[str, Any]:
    """The parts of a report that say what was asked, and each pair's ratio of speeds."""
    from bench.statistics import speed_ratio

    return {
        "prompts": {
            "files": [str(file) for file in files],
            "count": len(prompts),
            "tokens": sum(map(len, prompts)),
        },
        "ratios": [
            {"method": method, "baseline": baseline, **asdict(speed_ratio(runs[method], runs[baseline]))}
            for method, baseline in pairs
        ],
    }
