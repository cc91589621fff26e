"""Arrival times, files of arrivals, traces."""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.arrivals import LEAD_IN, Arrival, arrival_times, arrivals_text, read_chats, read_trace, scaled

CHATS = [[{"role": "user", "content": f"question {n}"}] for n in range(3)]


def variation(moments: list[float]) -> float:
    pauses = [after - before for before, after in itertools.pairwise(moments)]
    return statistics.stdev(pauses) / statistics.mean(pauses)


def test_arrival_patterns() -> None:
    for pattern, expected in (("poisson", 1.0), ("bursty", 2.0)):
        moments = arrival_times(pattern, 4.0, 2000.0, seed=1)
        assert len(moments) == pytest.approx(8000, rel=0.07)
        assert variation(moments) == pytest.approx(expected, rel=0.1)
        assert moments == sorted(moments)
        assert moments[-1] < 2000
    assert arrival_times("constant", 4.0, 1.0, seed=1) == [0.0, 0.25, 0.5, 0.75]


def test_arrivals_file() -> None:
    rows = [json.loads(line) for line in arrivals_text("constant", (), CHATS, 2.0, 3.0, 0, 32).splitlines()]
    assert [row["relative_timestamp"] for row in rows] == [LEAD_IN + half / 2 for half in range(6)]
    assert {row["output_tokens_count"] for row in rows} == {32}
    asked = [row["messages"] for row in rows]
    assert sorted(asked[:3], key=str) == CHATS
    assert asked[:3] == asked[3:]


def test_arrivals_of_trace() -> None:
    trace = [Arrival(second, 10, tokens) for second, tokens in ((0, 5), (1, 50), (1, 500), (4, 5), (8, 5))]
    assert [one.seconds for one in scaled(trace, 2.0, 2.0)] == [0.0, 0.25, 0.25, 1.0]
    # Nobody knows how long the pause after the last one was: as long as the mean.
    assert [one.seconds for one in scaled(trace, 5.0, 1.0)] == [0.0, 0.1, 0.1, 0.4, 0.8]
    rows = [json.loads(line) for line in arrivals_text("t.csv", trace, CHATS, 2.0, 2.0, 0, 64).splitlines()]
    assert [row["output_tokens_count"] for row in rows] == [5, 50, 64, 5]
    # By its time a request is known again.
    assert len({row["relative_timestamp"] for row in rows}) == 4


def test_invalid_arrivals() -> None:
    trace = [Arrival(0.0, 1, 1), Arrival(0.0, 1, 1), Arrival(9.0, 1, 1)]
    for arguments, part in (
        (("poisson", (), CHATS, 0.001, 1.0, 0, 8), "within 1 s: give a longer"),
        (("poisson", (), CHATS, 1e6, 60.0, 0, 8), "more than 100000"),
        (("t.csv", trace, CHATS, 4.0, 1.0, 0, 8), "the trace has 3 requests, and 4/s for 1 s are 4"),
        (("t.csv", trace, CHATS, 1.0, 1.0, 0, 8), "the first 1 requests of the trace have the same time"),
    ):
        with pytest.raises(UserError) as raised:
            arrivals_text(*arguments)
        assert part in str(raised.value), arguments


def test_chats_of_a_data_file(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    rows = [{"question": "one?", "answer": "A"}, {"question": {"turns": ["two?", "three?"], "system": "Be brief."}}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_chats(path) == [
        [{"role": "user", "content": "one?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two?"}],
    ]
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(UserError, match=r"test.jsonl:1: the key 'question' is missing"):
        read_chats(path)


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
