"""Any data set that the library `datasets` reads: from the Hugging Face hub, or a file or folder of Parquet, CSV, JSON.

Options name its columns. A question is a text, or a list of texts (turns). With --choices, a column of lists or several
columns, the options are added to the question as A, B, ...; the answer may be the index of the right one from 0, its
letter, its label or its text. Without, the answer is a text, a number, or a list of references. Code in a data set is
not run.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ianvs_specdec.benchmarks.files import Row, are_texts, is_number, is_text, is_whole
from ianvs_specdec.benchmarks.rows import RowReader, chosen_letter, labels_and_texts, with_options
from ianvs_specdec.benchmarks.scorers import SCORERS
from ianvs_specdec.benchmarks.source import Inputs, Source, check_hub, one_line
from ianvs_specdec.common.errors import UserError, optional_import, unknown

NAME = "hf"
SOURCE = Source(home="", parts={})
CATEGORIES: dict[str, frozenset[str]] = {}

TEST = "test"
KINDS = {"parquet": "parquet", "json": "json", "jsonl": "json", "csv": "csv", "tsv": "csv", "arrow": "arrow"}
"""File name extension -> the library's name of the format."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--path", required=True, metavar="NAME", help="name on the hub (OWNER/NAME), or a file or folder")
    add("--name", metavar="CONFIG", help="configuration of the data set, if it has several")
    add("--split", metavar="S", help="which part of it (default: test, or the only one)")
    add("--question", required=True, metavar="COLUMN", help="column of the questions")
    add("--answer", required=True, metavar="COLUMN", help="column of the right answers")
    add("--choices", nargs="+", default=[], metavar="COLUMN", help="column of lists of options, or a column for each")
    add("--group", metavar="COLUMN", help="column of the subjects (default: all questions are of one group)")
    add("--scorer", choices=sorted(SCORERS), help="how answers are scored (default: choice with --choices, else text)")


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    table = _load(options.path, options.name, options.split)
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
    """Convert a column of texts to indices of options if every value is one. Otherwise an option that is a small number
    would be mistaken for an index."""
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
        if (letter := chosen_letter(answer, labels, texts)) is None:
            known = f"its number from 0 to {len(texts) - 1}, its letter or its text"
            names = f"{options.answer!r} names none of the {len(texts)} options"
            raise UserError(f"{where}: {names}: expected {known}, not {answer!r:.80}")
        turns, answer = with_options(turns, texts), letter
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
    labels, texts = labels_and_texts(value, f"{where}: {', '.join(columns)}")
    if not all(is_text(text) or is_number(text) for text in texts):
        raise UserError(f"{where}: {', '.join(columns)} must hold a list of texts, not {texts!r:.80}")
    return labels, [str(text) for text in texts]


@dataclass(frozen=True)
class Table:
    """``classes``: column -> names of its class labels; ``texts``: whether cells are untyped, as in CSV."""

    columns: Sequence[str]
    classes: dict[str, list[str]]
    rows: list[Row]
    texts: bool


def _load(path: str, name: str | None = None, split: str | None = None) -> Table:
    """The rows of a file, a folder or a data set of the hub (configuration ``name``). ``split`` defaults to the only
    one, or to "test"."""
    with optional_import():
        import datasets
    _quiet()
    with _readable(path):
        if Path(path).is_file():
            if not Path(path).stat().st_size:
                raise UserError(f"{path}: the file is empty")
            ending = path.removesuffix(".gz").rpartition(".")[2].lower()
            if ending not in KINDS:
                raise UserError(f"{path}: unknown file type, expected {', '.join(f'.{end}' for end in KINDS)}")
            separator = {"sep": "\t"} if ending == "tsv" else {}
            found = _as_written(KINDS[ending], data_files={TEST: path}, **separator)
            split = split or TEST
        elif Path(path).is_dir():
            # Streamed, to keep it out of the library's cache.
            found = _from_disk(path) or _as_written(path, name)
        elif path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise UserError(f"there is no file or folder {path}")
        else:
            try:
                check_hub(path)
            except ConnectionError as error:
                advice = "Name a folder that has it, or set HF_HUB_OFFLINE=1 if it was loaded on this machine before"
                place = f"cannot get the data set {path} from the Hugging Face hub"
                raise UserError(f"{place} ({error}). {advice}") from error
            found = datasets.load_dataset(path, name)
        data = found[_split(found, split, path)]
    rows: list[Row] = []
    with _readable(path, lambda: f" after row {len(rows)}"):
        for row in data:
            rows.append(row)
    features = data.features or {}
    classes = {column: list(kind.names) for column, kind in features.items() if hasattr(kind, "int2str")}
    texts = data.info.builder_name == "csv"
    return Table(list(features or (rows[0] if rows else ())), classes, rows, texts)


def _quiet() -> None:
    """Silence the library; our error message is enough."""
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()


def _as_written(*what: Any, **options: Any) -> Any:
    """The splits, streamed. Cells of CSV stay texts: the library would read 007 as 7, and NA as missing."""
    import datasets
    import pandas

    found = datasets.load_dataset(*what, **options, streaming=True)
    for split, data in found.items():
        if data.info.builder_name == "csv":
            config = datasets.load_dataset_builder(*what, **options).config
            columns = pandas.read_csv(config.data_files[split][0], sep=config.sep, nrows=0).columns
            features = datasets.Features({column: datasets.Value("string") for column in columns})
            texts = {"features": features, "keep_default_na": False, "na_values": [""]}
            found[split] = datasets.load_dataset(*what, **options, **texts, split=split, streaming=True)
    return found


def _from_disk(path: str) -> Any:
    """The data set that ``save_to_disk`` stored in a folder; None for other folders."""
    import datasets

    if (Path(path) / "dataset_dict.json").is_file():
        return datasets.load_from_disk(path)
    if (Path(path) / "state.json").is_file():
        return {TEST: datasets.load_from_disk(path)}
    return None


def _split(found: Any, split: str | None, path: str) -> str:
    if split is not None:
        if split not in found:
            raise UserError(f"{path}: {unknown('split', split, found)}")
        return split
    if len(found) == 1 or TEST in found:
        return TEST if TEST in found else str(next(iter(found)))
    raise UserError(f"{path} has several splits, {', '.join(found)}: name one with --split")


@contextmanager
def _readable(where: str, place: Any = lambda: "") -> Iterator[None]:
    """Turn the library's errors about unreadable data into a UserError."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except UserError:
        raise
    except (DatasetsError, OSError, ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise UserError(f"{where}: cannot be read{place()}: {one_line(error.__cause__ or error)}") from error
