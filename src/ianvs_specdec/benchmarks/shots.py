"""Few-shot prompts: worked examples of a benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ianvs_specdec.benchmarks.files import File, non_negative, positive
from ianvs_specdec.benchmarks.source import Inputs
from ianvs_specdec.common.errors import UserError

DEV = "dev"
"""The part of a benchmark with the worked examples."""

Example = TypeVar("Example")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shots", type=non_negative, default=0, metavar="K", help="worked examples per prompt (0)")
    dev = "files or folder with the worked examples, unless they are next to the questions"
    parser.add_argument("--dev", type=Path, nargs="+", default=[], metavar="FILE", help=dev)
    limit = "maximum length of a prompt: the last worked examples are left out (default: no limit)"
    parser.add_argument("--max-characters", type=positive, metavar="N", help=limit)


def examples(
    inputs: Inputs, shots: int, read: Callable[[File], Iterator[Example]], subject: Callable[[Example], str]
) -> dict[str, list[Example]]:
    """Subject -> its first ``shots`` worked examples, in the files' order. Raises UserError without any."""
    found: dict[str, list[Example]] = {}
    for item in (item for file in inputs.files(DEV) for item in read(file)) if shots else ():
        found.setdefault(subject(item), []).append(item)
    if shots and not found:
        raise UserError(f"--shots {shots} needs worked examples: name their files with --dev")
    return {name: items[:shots] for name, items in found.items()}


def prompt_of(
    worked: Sequence[Example], options: argparse.Namespace, subject: str, prompt: Callable[[Sequence[Example]], str]
) -> str:
    """The prompt with ``--shots`` worked examples, or fewer to fit into ``--max-characters``."""
    if len(worked) < options.shots:
        raise UserError(f"there are {len(worked)} worked examples for {subject}, --shots asks for {options.shots}")
    text = prompt(worked)
    while worked and options.max_characters and len(text) > options.max_characters:
        worked = worked[:-1]
        text = prompt(worked)
    return text
