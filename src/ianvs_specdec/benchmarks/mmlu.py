"""MMLU (Hendrycks et al. 2021): multiple choice in 57 subjects, prompts as in the original evaluation.

Files: the original CSV (question, four options, letter; the subject is in the file name), or JSON lines with `subject`,
`question`, `choices` and `answer` (letter or index), possibly compressed.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import (
    are_texts,
    guarded,
    is_text,
    open_text,
    positive,
    read_json_lines,
    required,
    spread,
    write_rows,
)
from ianvs_specdec.errors import UserError

LETTERS = "ABCD"
SPLITS = ("_test", "_dev", "_val")


@dataclass(frozen=True)
class Item:
    subject: str
    question: str
    choices: tuple[str, ...]
    answer: str

    def example(self, *, answered: bool) -> str:
        """The question as it stands in a prompt, with its answer for a worked example."""
        options = "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, self.choices, strict=True))
        return f"{self.question}{options}\nAnswer:" + (f" {self.answer}\n\n" if answered else "")


def prompt(item: Item, worked: Sequence[Item] = ()) -> str:
    """The prompt of the original evaluation: a heading, ``worked`` examples of the subject, the question.

    The original builds the subject from words with a leading space each, hence the two spaces after "about".
    """
    subject = "".join(f" {word}" for word in item.subject.split("_"))
    heading = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    return heading + "".join(example.example(answered=True) for example in worked) + item.example(answered=False)


def read(path: Path) -> Iterator[Item]:
    """The questions of a file. Raises UserError with file and line."""
    return _read_csv(path) if ".csv" in path.suffixes[-2:] else _read_json(path)


def _read_csv(path: Path) -> Iterator[Item]:
    subject = path.name.partition(".")[0]
    for split in SPLITS:
        subject = subject.removesuffix(split)
    with open_text(path) as file:
        reader = csv.reader(file)
        for _, row in guarded(path, reader):
            if not row:
                continue
            where = f"{path}:{reader.line_num}"
            if len(row) != 6:
                raise UserError(f"{where}: expected 6 columns (question, four options, letter), found {len(row)}")
            yield Item(subject, row[0], tuple(row[1:5]), _letter(row[5].strip(), where))


def _read_json(path: Path) -> Iterator[Item]:
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        choices = required(row, "choices", are_texts, "a list of four texts", where)
        if len(choices) != len(LETTERS):
            raise UserError(f"{where}: 'choices' must hold four options, not {len(choices)}")
        answer = required(row, "answer", lambda value: True, "", where)
        yield Item(
            required(row, "subject", is_text, "a text", where),
            required(row, "question", is_text, "a text", where),
            tuple(choices),
            _letter(answer, where),
        )


def _letter(answer: Any, where: str) -> str:
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(LETTERS):
        return LETTERS[answer]
    if not isinstance(answer, str) or len(answer) != 1 or answer not in LETTERS:
        raise UserError(f"{where}: the answer must be a letter from A to D (or its index), not {answer!r}")
    return answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="MMLU questions: .csv, .jsonl or .jsonl.gz")
    parser.add_argument("--out", type=Path, required=True, help="data file to write (.jsonl)")
    parser.add_argument("--limit", type=positive, metavar="N", help="take N questions, spread evenly over the files")
    parser.add_argument("--shots", type=int, default=0, metavar="K", help="worked examples in each prompt (default 0)")
    parser.add_argument(
        "--dev", type=Path, nargs="+", default=[], metavar="FILE", help="files with the worked examples"
    )


def run(options: argparse.Namespace) -> int:
    if options.shots < 0:
        raise UserError(f"--shots must be 0 or more, not {options.shots}")
    if options.shots and not options.dev:
        raise UserError(f"--shots {options.shots} needs --dev FILE with the worked examples")
    worked: dict[str, list[Item]] = {}
    for item in (item for path in options.dev for item in read(path)):
        worked.setdefault(item.subject, []).append(item)
    rows, counts = [], dict[str, int]()
    for item in (item for path in options.files for item in read(path)):
        counts[item.subject] = counts.get(item.subject, 0) + 1
        examples = worked.get(item.subject, [])[: options.shots]
        if len(examples) < options.shots:
            raise UserError(
                f"--dev has {len(examples)} worked examples for {item.subject}, --shots asks for {options.shots}"
            )
        query = {
            "turns": [prompt(item, examples)],
            "id": f"{item.subject}-{counts[item.subject]:04d}",
            "group": item.subject,
            "scorer": "choice",
        }
        rows.append({"question": query, "answer": item.answer})
    chosen = spread(rows, options.limit)
    write_rows(options.out, chosen)
    print(f"{options.out}: {len(chosen)} of {len(rows)} questions, {len(counts)} subjects, {options.shots}-shot")
    return 0
