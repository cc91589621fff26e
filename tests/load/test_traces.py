"""Traces in the public forms are read as they are; what is not such a trace is told with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.arrivals import Arrival, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def mooncake(*rows: tuple[object, object, object]) -> str:
    names = ("timestamp", "input_length", "output_length")
    return "".join(json.dumps({**dict(zip(names, row, strict=True)), "hash_ids": [1, 2]}) + "\n" for row in rows)


def test_azure_trace(tmp_path: Path) -> None:
    path = tmp_path / "code.csv"
    path.write_text(
        f"{AZURE}2023-11-16 23:59:59.0930000,4808,10\n2023-11-17 00:00:00.3430005,3180,8\n2023-11-17 00:00:01,110,0\n"
    )
    first, second, third = read_trace(path)
    assert first == Arrival(0.0, 4808, 10)
    assert second.seconds == pytest.approx(1.25)
    assert (third.seconds, third.output_tokens) == (pytest.approx(1.907), 1)


def test_compressed_mooncake_trace(tmp_path: Path) -> None:
    path = tmp_path / "conversation.jsonl.gz"
    path.write_bytes(gzip.compress(mooncake((500, 6955, 52), (500, 6472, 26), (2500, 1, 1), (4500, 1, 1)).encode()))
    assert [arrival.seconds for arrival in read_trace(path)] == [0.0, 0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("name", "text", "line", "part"),
    [
        ("a.csv", f"{AZURE}2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n", 3, "goes back by 1 s"),
        ("a.csv", f"{AZURE}2023-11-16 18:15:46,1,1\n2023-11-16 18:15:47,,1\n", 3, "'ContextTokens' is empty"),
        ("a.csv", f"{AZURE}yesterday,1,1\n", 2, "not a date with a time: 'yesterday'"),
        ("a.csv", f"{AZURE}2023-11-16 18:15:46,1.5,1\n", 2, "whole number of tokens"),
        ("a.csv", "time,ContextTokens,GeneratedTokens\n1,1,1\n", 2, "the column 'TIMESTAMP' is missing"),
        ("a.jsonl", mooncake((0, 1, 1), (-5, 1, 1)), 2, "'timestamp' is negative (-5)"),
        ("a.jsonl", mooncake((0, 1, 1), ("soon", 1, 1)), 2, "number of milliseconds, not 'soon'"),
        ("a.jsonl", '{"timestamp": 0, "prompt": 3}\n', 1, "found: timestamp, prompt"),
        ("a.jsonl", mooncake(*((1000 * n + 20_000 * (n > 4), 1, 1) for n in range(10))), 6, "21 s without a request"),
        ("a.jsonl", mooncake((7, 1, 1), (7, 1, 1)), 1, "all requests have the same time"),
        ("a.jsonl", mooncake((7, 1, 1)), None, "at least two requests, this one has 1"),
        ("a.txt", "", None, "also with .gz"),
    ],
)
def test_invalid_traces(tmp_path: Path, name: str, text: str, line: int | None, part: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert part in str(raised.value)
