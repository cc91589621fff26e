"""Tables read by the library ``datasets``: Parquet files, folders of data files, data sets of the Hugging Face hub.

It never runs code of a data set: the library does not do so any more, and nothing here asks it to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError, optional_import, unknown

Row = dict[str, Any]

REACHED = 10.0
"""Seconds in which the hub must have answered."""
TEST = "test"
KINDS = {"parquet": "parquet", "json": "json", "jsonl": "json", "csv": "csv", "tsv": "csv", "arrow": "arrow"}
"""File name extension -> the library's name of the format."""


@dataclass(frozen=True)
class Table:
    """``classes``: of a column of labels, their names by number; ``texts``: whether cells have no type, as in CSV."""

    columns: Sequence[str]
    classes: dict[str, list[str]]
    rows: list[Row]
    texts: bool


def load(path: str, name: str | None = None, split: str | None = None) -> Table:
    """The rows of a file, a folder or a data set of the hub, of its configuration ``name`` and its ``split`` (default:
    the only one, or "test")."""
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
            # Not copied into the library's cache: it is here already.
            found = _from_disk(path) or _as_written(path, name)
        elif path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise UserError(f"there is no file or folder {path}")
        else:
            try:
                reach(path)
            except ConnectionError as error:
                advice = "Name a folder that has it, or set HF_HUB_OFFLINE=1 if it was loaded on this machine before"
                place = f"cannot get the data set {path} from the Hugging Face hub"
                raise UserError(f"{place} ({error}). {advice}") from error
            found = datasets.load_dataset(path, name)
        data = found[_split(found, split, path)]
    rows, features = list(_rows(path, data)), data.features or {}
    classes = {column: list(kind.names) for column, kind in features.items() if hasattr(kind, "int2str")}
    texts = data.info.builder_name == "csv"
    return Table(list(features or (rows[0] if rows else ())), classes, rows, texts)


def parquet(path: str) -> Iterator[Row]:
    """The rows of a Parquet file, which may be a member of an archive (``zip://MEMBER::ARCHIVE``)."""
    with optional_import():
        import datasets
    _quiet()
    with _readable(path, lambda: " after row 0"):
        data = datasets.load_dataset("parquet", data_files={TEST: path}, split=TEST, streaming=True)
    yield from _rows(path, data)


def _rows(where: str, data: Any) -> Iterator[Row]:
    number = 0
    with _readable(where, lambda: f" after row {number}"):
        for row in data:
            number += 1
            yield row


def _quiet() -> None:
    """Silence the library: our message reports the error."""
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()


def _as_written(*what: Any, **options: Any) -> Any:
    """The splits, streamed. Cells of CSV are texts: the library would take 007 for 7, and NA for nothing."""
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
    """The data set that the library saved in a folder; None for other folders."""
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


def reach(repository: str) -> None:
    """ConnectionError where the hub does not have the data set, or does not answer: a download would retry for half a
    minute. With ``HF_HUB_OFFLINE`` the cache is used."""
    import huggingface_hub as hub
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        hub.HfApi().dataset_info(repository, timeout=REACHED)
    except OfflineModeIsEnabled:
        return
    except Exception as error:
        # That it cannot be reached is said by exceptions of the package that the hub's client happens to use.
        raise ConnectionError(_line(error)) from error


@contextmanager
def _readable(where: str, place: Any = lambda: "") -> Iterator[None]:
    """Turn the library's errors about unreadable data into a UserError."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except UserError:
        raise
    except (DatasetsError, OSError, ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise UserError(f"{where}: cannot be read{place()}: {_line(error.__cause__ or error)}") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__
