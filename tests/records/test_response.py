"""A damaged line of a test case's answers costs one answer, not the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.page import to_json
from tests.support.workspace import Bench, Side, choice, completion

ANYTHING = [
    *("null", "true", "-1", "0.5", "1e999", "NaN", "9" * 400, '""', '"text"', "[]", "[[]]", "[1]", "{}", '{"a": [1]}')
]
SOME = 14
"""Each field is tried with one of this many values, in turn."""
RAW = [b"[" * 100_000, b'{"index": 1e999, "result": {}}', b"\xff\xfe", b"[1, 2]"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    made = Bench(tmp_path, [choice(0), choice(1)])
    answers = [Side("edge", "PromptLookup", [completion("B", drafting=True)]) for _ in range(2)]
    made.case("EdgeOnly", [(answer, None) for answer in answers])
    return made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def with_text(record: Any, path: tuple[Any, ...], text: str) -> str:
    copy = json.loads(json.dumps(record))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "<here>"
    return json.dumps(copy).replace('"<here>"', text)


def of_the_case(bench: Bench, name: str) -> Path:
    (found,) = bench.folder.rglob(name)
    return found


def test_a_wrong_value_in_any_field_costs_only_its_answer(bench: Bench) -> None:
    file = of_the_case(bench, "answers.jsonl")
    first, second = file.read_text(encoding="utf-8").splitlines()
    record = json.loads(first)
    (whole,) = collect(bench.folder)["cases"]
    left_out = 0
    for number, path in enumerate(places(record)):
        for text in ANYTHING[number % SOME :: SOME]:
            file.write_text(f"{with_text(record, path, text)}\n{second}\n", encoding="utf-8")
            document = collect(bench.folder)
            to_json(document)
            (case,) = document["cases"]
            assert case["answered"] in (1, 2)
            left_out += whole["answered"] - case["answered"]
    assert left_out > 10


@pytest.mark.parametrize("line", RAW, ids=lambda line: line[:20])
def test_a_damaged_line_costs_only_itself(bench: Bench, line: bytes) -> None:
    file = of_the_case(bench, "answers.jsonl")
    file.write_bytes(file.read_bytes() + line + b"\n")
    (case,) = collect(bench.folder)["cases"]
    assert case["answered"] == 2
    assert "damaged lines of answers.jsonl are left out: 3" in case["notes"]


@pytest.mark.parametrize("text", ["null", "[1]", "[" * 100_000, '{"run": [1]}', '{"load": 7}', '{"run": {"a": 1e999}}'])
def test_damaged_environments_are_ignored(bench: Bench, text: str) -> None:
    of_the_case(bench, "environment.json").write_text(text, encoding="utf-8")
    document = collect(bench.folder)
    to_json(document)
    assert document["cases"][0]["answered"] == 2
