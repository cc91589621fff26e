"""Test data: located and checked before the run, and copied for each test case."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from core.common.errors import nearest
from core.common.log import LOGGER
from core.common.section import Section, find_file
from core.common.utils import get_file_format, plural
from sedna.common.utils import copy_tree
from sedna.datasources import BaseDataSource, JsonlDataParse, JSONMetaDataParse, MalformedRow, object_array

_TEST_KEYS = ("test_index", "test_data", "test_data_info")  # in the order in which Ianvs looks for them
_TRAIN_KEYS = ("train_index", "train_data", "train_data_info")
_KNOWN: dict[str, Any] = dict.fromkeys((*_TEST_KEYS, *_TRAIN_KEYS, "train_url", "test_url"), str) | {"label": object}
_FORMATS = {"test_data": "jsonl", "test_data_info": "jsonforllm"}
_SUPPORTED = (
    "joint inference reads test_data: a .jsonl file, or test_data_info: a metadata.json in the folder of a data.jsonl"
)


@dataclass
class Dataset:
    """``url``: the test file in the YAML file, ``file``: its path, ``digest``: of its content."""

    at: Section
    key: str = ""
    url: str = ""
    file: str = ""
    digest: str = ""
    _source: Any = None

    @classmethod
    def parse(cls, at: Section, value: Any) -> Dataset:
        """Read the key ``dataset`` of a test environment."""
        dataset = cls(at)
        entries = at.mapping(value, _KNOWN)
        if not isinstance(value, dict):
            return dataset
        _check_training(at, entries)
        dataset.key = next((key for key in _TEST_KEYS if key in entries), "")
        meant = [key for key in value if key in _TEST_KEYS or (key not in _KNOWN and nearest(key, _TEST_KEYS))]
        if dataset.key:
            dataset.url = entries[dataset.key]
            dataset._find()
        elif not meant:  # a misspelled key has its own message
            at.add(f"the test data is missing: {_SUPPORTED}")
        return dataset

    def _find(self) -> None:
        key, url = self.key, self.url
        if _FORMATS.get(key) != get_file_format(url):
            self.at.add(f"{key}: {url} cannot be read here; {_SUPPORTED}", key)
            return
        commands = self.at.doc.commands(*self.at.path, key)
        found = self.at.find(url, key, advice=f". Create it with: {'; '.join(commands)}" if commands else "")
        if found is not None and not os.path.isfile(found):
            self.at.add(f"{key}: {url} is not a file", key)
        elif found is not None:
            self.file = found
            rows = self._files()[-1]
            if not os.path.isfile(rows):
                self.at.add(f"file not found: {rows}, which belongs to {found}", key)

    def _files(self) -> list[str]:
        beside = [os.path.join(os.path.dirname(self.file), "data.jsonl")] if self.key == "test_data_info" else []
        return [self.file, *beside]

    def read(self, on_malformed_row: str) -> None:
        """Parse all rows. A malformed one is an error; with "skip" it is left out and counted."""
        add = self.at.problems.add
        source = (JsonlDataParse if self.key == "test_data" else JSONMetaDataParse)("test")
        try:
            source.parse(self.file, on_malformed_row=on_malformed_row)
            self.digest = self._digest()
        except MalformedRow as error:
            advice = f"on_malformed_row: skip in {self.at.doc.file} leaves such rows out"
            if error.first:
                advice = "a .jsonl file has one JSON object per line"
            add(error.place, f"{error.reason} ({advice})")
            return
        except OSError as error:
            add(self.file, f"cannot be read: {error.strerror}")
            return
        if source.malformed:
            count, shown = plural(len(source.malformed), "malformed row"), "; ".join(source.malformed[:3])
            LOGGER.warning("%s left out: %s%s", count, shown, " ..." * (len(source.malformed) > 3))
        if not len(source.x):
            add(self.file, "the dataset has no rows" + ", all are malformed" * bool(source.malformed))
        self._source = source

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for file in self._files():
            with open(file, "rb") as stream:
                while piece := stream.read(1 << 20):
                    digest.update(piece)
        return digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._source)

    @property
    def skipped(self) -> int:
        return len(self._source.malformed)

    @property
    def labels(self) -> Any:
        return self._source.y

    def placed(self, reader: Any = None) -> Iterator[tuple[str, Any, Any]]:
        """``file:line``, input and label of each row, not copied."""
        return zip(self._source.places, self._inputs(reader), self._source.y, strict=True)

    def _inputs(self, reader: Any) -> Any:
        """The inputs for a module: with ``whole_rows``, a row with further fields is passed whole."""
        whole = getattr(reader, "whole_rows", False) and self._source.rows is not None
        return self._source.rows if whole else self._source.x

    def fresh(self, reader: Any = None) -> BaseDataSource:
        """A copy for one test case, whose dataset processor may change it."""
        source = copy.copy(self._source)
        source.x = object_array([copy_tree(row) for row in self._inputs(reader)])
        source.y = self._source.y.copy()
        return source


def _check_training(at: Section, entries: dict[str, Any]) -> None:
    """Warn about training data, which joint inference does not need but upstream requires."""
    given = [key for key in _TRAIN_KEYS if key in entries]
    if not given:
        message = "the training data is missing, although it is not used: name a file under"
        at.fails_upstream(f"{message} {_TRAIN_KEYS[1]}")
    for key in given:
        if find_file(entries[key], at.doc) is None:
            at.warn(f"{entries[key]} does not exist; joint inference does not need it", key)
            at.fails_upstream(f"{entries[key]} does not exist", key)


def aligned_labels(processed: Any, raw: Any) -> Any:
    """The labels of a processed dataset: the processor's if all are raw labels, else the raw ones. Raises ValueError if
    neither fits. (Ianvs always uses the raw ones, which are shifted if a processor filters or reorders.)"""
    count, own = len(processed.x), processed.y
    if own is not None and len(own) == count:
        known = {_key(label) for label in raw}
        if all(_key(label) in known for label in own):
            return own if hasattr(own, "dtype") and own.dtype == object else object_array(list(own))
    if count == len(raw):
        return raw
    raise ValueError(
        f"the dataset processor returned {count} of {len(raw)} rows and changed the labels, so that they do not match: "
        "filter dataset.y together with dataset.x, and do not change the labels"
    )


def _key(label: Any) -> str:
    return label if isinstance(label, str) else repr(label)
