"""Multiple-choice questions with four options, in the file formats of MMLU and CMMLU."""

from __future__ import annotations

import argparse
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks import shots
from ianvs_specdec.benchmarks.extraction import FOUR_LETTERS
from ianvs_specdec.benchmarks.files import File, Row, are_texts, is_text, read_csv_lines, records, required, with_header
from ianvs_specdec.benchmarks.scorers import CHOICES
from ianvs_specdec.benchmarks.source import Inputs
from ianvs_specdec.common.errors import UserError

_LETTER = {text: letter for index, letter in enumerate(FOUR_LETTERS) for text in (letter, str(index))}
_SPLIT = re.compile(r"(?:c?mmlu[-_])?(?:test|dev|val(?:idation)?)(?:-\d+-of-\d+)?|\d{4}")
_SUFFIX = re.compile(r"_(?:test|dev|val)$")
_NAMES = {"question": ("question", "input"), "answer": ("answer", "target")}


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question with four ``choices``; ``answer`` is the letter of the right one."""

    subject: str
    question: str
    choices: tuple[str, ...]
    answer: str

    @property
    def options(self) -> str:
        """The options as both benchmarks write them, one per line."""
        return "".join(f"\n{letter}. {choice}" for letter, choice in zip(FOUR_LETTERS, self.choices, strict=True))


PromptMaker = Callable[[ChoiceQuestion, Sequence[ChoiceQuestion]], str]
"""Builds the prompt of a question with worked examples of its subject."""


def read(file: File) -> Iterator[ChoiceQuestion]:
    """The questions of a file: named fields (``question``, ``choices`` or ``A`` to ``D``, ``answer`` as letter or
    index, ``subject``), or CSV of six columns without header. Raises UserError with file and line."""
    if not file.name.removesuffix(".gz").endswith(".csv"):
        yield from (_of_record(row, file, where) for where, row in records(file))
        return
    lines = read_csv_lines(file)
    first = list(itertools.islice(lines, 1))
    lines = itertools.chain(first, lines)
    if {name.strip().lower() for _, fields in first for name in fields} & set(_NAMES["question"]):
        yield from (_of_record(row, file, where) for where, row in with_header(file, lines))
        return
    for where, fields in lines:
        if len(fields) != 2 + len(FOUR_LETTERS):
            raise UserError(f"{where}: expected 6 columns (question, four options, letter), found {len(fields)}")
        yield ChoiceQuestion(subject_of(file), fields[0], tuple(fields[1:5]), _letter(fields[5], where))


def subject_of(file: File) -> str:
    """The subject in a file's name: anatomy in ``anatomy_test.csv``, ``dev/anatomy.csv`` and
    ``anatomy/test-00000-of-00001.parquet``."""
    path = Path(str(file))
    names = [path.name.partition(".")[0], *(parent.name for parent in path.parents)]
    name = next((name for name in names if name and not _SPLIT.fullmatch(name)), path.stem)
    return _SUFFIX.sub("", name)


def categories(file: Path, prefix: str = "") -> dict[str, frozenset[str]]:
    """Category -> groups, from a CSV file with the columns ``category`` and ``subject``."""
    found: dict[str, frozenset[str]] = {}
    for _, row in records(file):
        found[row["category"]] = found.get(row["category"], frozenset()) | {prefix + row["subject"]}
    return found


def _of_record(row: Row, file: File, where: str) -> ChoiceQuestion:
    row = {str(name).lower(): value for name, value in row.items()}
    named = {wanted: next((name for name in names if name in row), wanted) for wanted, names in _NAMES.items()}
    if "choices" in row:
        choices = required(row, "choices", are_texts, "a list of four texts", where)
    else:
        choices = [required(row, letter.lower(), is_text, "a text", where) for letter in FOUR_LETTERS]
    if len(choices) != len(FOUR_LETTERS):
        raise UserError(f"{where}: 'choices' must hold four options, not {len(choices)}")
    answer = required(row, named["answer"], lambda value: True, "", where)
    return ChoiceQuestion(
        required(row, "subject", is_text, "a text", where) if "subject" in row else subject_of(file),
        required(row, named["question"], is_text, "a text", where),
        tuple(choices),
        _letter(answer, where),
    )


def _letter(answer: Any, where: str) -> str:
    letter = _LETTER.get(str(answer).strip())
    if letter is None:
        raise UserError(f"{where}: the answer must be a letter from A to D (or its index), not {answer!r:.200}")
    return letter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shots.add_arguments(parser)
    what = "scored letter: the one that the answer states (default), or the one with the highest probability"
    parser.add_argument("--scorer", choices=CHOICES, default=CHOICES[0], help=what)


def rows(inputs: Inputs, options: argparse.Namespace, prompt: PromptMaker, prefix: str = "") -> list[Row]:
    """A row for each question. The group is ``prefix`` and the subject, the id the group and a number."""
    worked = shots.examples(inputs, options.shots, read, lambda item: item.subject)
    found, counts = list[Row](), Counter[str]()
    for item in (item for file in inputs.files() for item in read(file)):
        counts[item.subject] += 1
        group = prefix + item.subject
        query = {
            "turns": [shots.prompt_of(worked.get(item.subject, []), options, group, functools.partial(prompt, item))],
            "id": f"{group}-{counts[item.subject]:04d}",
            "group": group,
            "scorer": options.scorer,
        }
        found.append({"question": query, "answer": item.answer})
    return found
