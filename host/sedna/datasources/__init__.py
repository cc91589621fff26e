"""Data files of questions and answers, one JSON object per line. Errors have file and line.

Rows are arrays of objects: in a NumPy array of strings every row has the width of the longest.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sedna.common.class_factory import ClassFactory, ClassType

__all__ = ("BaseDataSource", "JSONMetaDataParse", "JsonlDataParse", "MalformedRow", "object_array")


LONGEST = 1 << 24
"""Maximum bytes of a line."""
DEEPEST = 64
"""Maximum nesting depth of lists and objects in a row: rows are processed recursively."""
TOO_DEEP = "not usable JSON: nested too deeply"


class MalformedRow(ValueError):
    """A row that cannot be used. ``place``: its ``file:line``. ``first``: the file probably has another format."""

    def __init__(self, place: str, reason: str, first: bool = False) -> None:
        super().__init__(f"{place}: {reason}")
        self.place, self.reason, self.first = place, reason, first


def object_array(values: Any) -> np.ndarray:
    """The values (of any type) as a one-dimensional array of objects."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


class BaseDataSource:
    """``x``: inputs, ``y``: labels, ``rows``: the input of each row, or the whole row if it has further fields."""

    def __init__(self, data_type: str = "train", func: Callable[..., Any] | str | None = None) -> None:
        self.data_type = data_type
        self.process_func = ClassFactory.get_cls(ClassType.CALLBACK, func)() if isinstance(func, str) else func
        self.x: Any = None
        self.y: Any = None
        self.rows: Any = None
        self.meta_attr: Any = None

    def num_examples(self) -> int:
        return len(self.x)

    def __len__(self) -> int:
        return self.num_examples()

    def parse(self, *args: str, **kwargs: Any) -> None:
        raise NotImplementedError

    @property
    def is_test_data(self) -> bool:
        return self.data_type == "test"


class _LinesParse(BaseDataSource):
    """A parser of JSON lines. ``malformed``: errors of skipped rows; ``places``: ``file:line`` of the others."""

    required: tuple[str, ...] = ()

    def __init__(self, data_type: str = "train", func: Callable[..., Any] | str | None = None) -> None:
        super().__init__(data_type, func)
        self.malformed: list[str] = []
        self.places: list[str] = []

    def _rows(self, file: str, on_malformed_row: str) -> Iterator[dict[str, Any]]:
        def fault(number: int, reason: str, first: bool = False) -> None:
            row_fault = MalformedRow(f"{file}:{number}", reason, first)
            if on_malformed_row != "skip":
                raise row_fault
            self.malformed.append(str(row_fault))

        blank: list[int] = []  # blank lines at the end of the file are accepted
        with open(file, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), 1):
                if len(line) > LONGEST:
                    raise MalformedRow(f"{file}:{number}", f"the line is longer than {LONGEST >> 20} MiB", number == 1)
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not line.strip():
                    blank.append(number)
                    continue
                for earlier in blank:
                    fault(earlier, "blank line")
                blank.clear()
                row, reason = self._read(line)
                if reason:
                    fault(number, reason, number == 1 and not isinstance(row, dict))
                else:
                    self.places.append(f"{file}:{number}")
                    yield row

    def _read(self, line: bytes) -> tuple[Any, str]:
        row: Any = None
        try:
            row = json.loads(line.decode("utf-8"), object_pairs_hook=_object)
            return row, self._fault(row) or _too_deep(line, row)
        except UnicodeDecodeError as error:
            utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            advice = ". It is UTF-16 text: save it as UTF-8" if utf16 else ""
            return row, f"not UTF-8 text (byte {error.start + 1} of the line){advice}"
        except json.JSONDecodeError as error:
            return row, f"not JSON: {error.msg} at column {error.colno}"
        except ValueError as error:  # a number of thousands of digits
            return row, f"not usable JSON: {str(error).partition(';')[0]}"
        except RecursionError:
            return row, TOO_DEEP

    def _fault(self, row: Any) -> str:
        if not isinstance(row, dict):
            return f"a row must be a JSON object, this is {type(row).__name__}"
        missing = [key for key in self.required if key not in row]
        if missing:
            return f"the key {', '.join(map(repr, missing))} is missing; a row needs {', '.join(self.required)}"
        question = row[self.required[0]]
        if not isinstance(question, (str, dict, list)):
            return f"{self.required[0]!r} must be a text or an object, this is {json.dumps(question)}"
        blank = not question or (isinstance(question, str) and question.isspace())
        return f"{self.required[0]!r} is empty" if blank else ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. ValueError for a duplicate key: JSON would silently use the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    if "question" in found and "answerKey" in found:  # as in ARC and CommonsenseQA
        found.setdefault("answer", found["answerKey"])
    return found


def _too_deep(line: bytes, row: Any) -> str:
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return ""
    level, depth = [row], 0
    while level and depth <= DEEPEST:
        inner = [list(value.values()) if isinstance(value, dict) else value for value in level]
        level = [item for values in inner for item in values if isinstance(item, (dict, list))]
        depth += 1
    return f"{TOO_DEEP}, nested more than {DEEPEST} levels deep" if depth > DEEPEST else ""


class JsonlDataParse(_LinesParse):
    required = ("question", "answer")

    def parse(self, *args: str, on_malformed_row: str = "stop", **kwargs: Any) -> None:
        """Read the files into ``x`` and ``y``. Raises MalformedRow unless ``on_malformed_row`` is "skip"."""
        rows = [row for file in args for row in self._rows(file, on_malformed_row)]
        self.x = object_array([row["question"] for row in rows])
        self.y = object_array([row["answer"] for row in rows])
        self.rows = object_array([row if len(row) > 2 else row["question"] for row in rows])


class JSONMetaDataParse(_LinesParse):
    """``metadata.json`` with ``data.jsonl`` in the same folder. A row's ``prompt``, if any, precedes its ``query``."""

    required = ("query", "response", "level_3_dim", "level_4_dim")
    described = ("dataset", "description", "level_1_dim", "level_2_dim")

    def __init__(self, data_type: str = "train", func: Callable[..., Any] | str | None = None) -> None:
        super().__init__(data_type, func)
        self.need_other_info = True

    def parse(self, *args: str, on_malformed_row: str = "stop", **kwargs: Any) -> None:
        (file,) = args
        described = self._describe(file)
        self.dataset_name, self.description, self.level_1_dim, self.level_2_dim = map(described.get, self.described)
        rows = list(self._rows(os.path.join(os.path.dirname(file), "data.jsonl"), on_malformed_row))
        self.x = object_array([row["prompt"] + row["query"] if row.get("prompt") else row["query"] for row in rows])
        self.y = object_array([row["response"] for row in rows])
        self.explanation = object_array([row.get("explanation", "") for row in rows])
        self.judge_prompts = object_array([row.get("judge_prompt", "") for row in rows])
        self.level_3 = object_array([row["level_3_dim"] for row in rows])
        self.level_4 = object_array([row["level_4_dim"] for row in rows])

    def _describe(self, file: str) -> dict[str, Any]:
        with open(file, "rb") as stream:
            try:
                found = json.loads(stream.read().decode("utf-8-sig"))
            except ValueError as error:  # UTF-8, JSON, or a number of thousands of digits
                raise MalformedRow(f"{file}:{getattr(error, 'lineno', 1)}", f"not JSON: {error}") from error
            except RecursionError as error:
                raise MalformedRow(f"{file}:1", TOO_DEEP) from error
        described = found if isinstance(found, dict) else {}
        if missing := [key for key in self.described if key not in described]:
            raise MalformedRow(f"{file}:1", f"the key {', '.join(map(repr, missing))} is missing")
        return described

    def _fault(self, row: Any) -> str:
        reason = super()._fault(row)
        if not reason and row.get("prompt") and not (isinstance(row["prompt"], str) and isinstance(row["query"], str)):
            return "'prompt' precedes 'query': both must be texts"
        return reason
