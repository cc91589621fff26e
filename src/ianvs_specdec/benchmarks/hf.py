"""Any data set that the library `datasets` reads: of the Hugging Face hub, or a file or folder of Parquet, CSV or JSON.

Options name its columns. A question is a text, or a list of texts: the turns. With --choices, which is a column of
lists or several columns, the options stand below the question as A, B and so on; the answer may be the number of the
right one from 0, its letter, its label or its text. Without, the answer is a text, a number, or a list of references.
Code that a data set brings along is not run.
"""

from __future__ import annotations

import argparse
from pathlib import PurePath
from typing import Any

from ianvs_specdec.benchmarks import tabular
from ianvs_specdec.benchmarks.files import Row, are_texts, is_number, is_text, is_whole
from ianvs_specdec.benchmarks.rows import RowReader, asked, chosen, listed
from ianvs_specdec.benchmarks.scorers import SCORERS
from ianvs_specdec.benchmarks.source import Inputs, Source
from ianvs_specdec.common.errors import UserError, unknown

NAME = "hf"
SOURCE = Source(home="", parts={})
CATEGORIES: dict[str, frozenset[str]] = {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--path", required=True, metavar="NAME", help="name on the hub (OWNER/NAME), or a file or folder")
    add("--name", metavar="CONFIG", help="configuration of the data set, where it has several")
    add("--split", metavar="S", help="which part of it (default: test, or the only one)")
    add("--question", required=True, metavar="COLUMN", help="column of the questions")
    add("--answer", required=True, metavar="COLUMN", help="column of the right answers")
    add("--choices", nargs="+", default=[], metavar="COLUMN", help="column of lists of options, or a column for each")
    add("--group", metavar="COLUMN", help="column of the subjects (default: all questions are of one group)")
    add("--scorer", choices=sorted(SCORERS), help="how answers are scored (default: choice with --choices, else text)")


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    table = tabular.load(options.path, options.name, options.split)
    for column in (options.question, options.answer, *options.choices, *filter(None, [options.group])):
        if column not in table.columns:
            raise UserError(f"{options.path}: {unknown('column', column, table.columns)}")
    name = PurePath(options.path).name.partition(".")[0]
    if table.texts and options.choices:
        _number(table.rows, options.answer, len(options.choices))
    found = [_row(row, number, name, table.classes, options) for number, row in enumerate(table.rows, start=1)]
    placed = ((f"row {number}", row["question"], row["answer"]) for number, row in enumerate(found, start=1))
    reader = RowReader(lambda part, place: f"{options.path}: {place}: the {part}", judged=False)
    for row in placed:
        reader.read(*row)
    return found


def _number(rows: list[dict[str, Any]], column: str, options: int) -> None:
    """Read a column of texts as numbers of options if every one of them can be that. Otherwise an option that is a
    small number itself would be mistaken for the one that is counted.
    """
    if all(str(row[column]).isdecimal() and int(row[column]) < options for row in rows):
        for row in rows:
            row[column] = int(row[column])


def _row(
    row: dict[str, Any], number: int, name: str, classes: dict[str, list[str]], options: argparse.Namespace
) -> Row:
    where = f"{options.path}: row {number}"
    question, answer = row[options.question], row[options.answer]
    turns = question if are_texts(question) else [question]
    if not are_texts(turns):
        raise UserError(f"{where}: {options.question!r} must be a text or a list of texts, not {question!r:.80}")
    if options.choices:
        labels, texts = _choices(row, options.choices, where)
        if (letter := chosen(answer, labels, texts)) is None:
            known = f"its number from 0 to {len(texts) - 1}, its letter or its text"
            names = f"{options.answer!r} names none of the {len(texts)} options"
            raise UserError(f"{where}: {names}: expected {known}, not {answer!r:.80}")
        turns, answer = asked(turns, texts), letter
    elif options.answer in classes and is_whole(answer) and 0 <= answer < len(classes[options.answer]):
        answer = classes[options.answer][answer]
    elif isinstance(answer, list):
        answer = {"references": answer}
    scorer = options.scorer or ("choice" if options.choices else "text")
    query: dict[str, Any] = {"turns": turns, "id": f"{name}-{number:04d}", "scorer": scorer}
    group: Any = row[options.group] if options.group else name
    named = classes.get(options.group, [])
    query["group"] = named[group] if is_whole(group) and 0 <= group < len(named) else str(group)
    return {"question": query, "answer": answer}


def _choices(row: dict[str, Any], columns: list[str], where: str) -> tuple[list[str], list[str]]:
    """Labels and texts of the options."""
    value = row[columns[0]] if len(columns) == 1 else [row[column] for column in columns]
    labels, texts = listed(value, f"{where}: {', '.join(columns)}")
    if not all(is_text(text) or is_number(text) for text in texts):
        raise UserError(f"{where}: {', '.join(columns)} must hold a list of texts, not {texts!r:.80}")
    return labels, [str(text) for text in texts]
