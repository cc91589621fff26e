"""A judge, and ``specdec data prepare`` as a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.judge_prompts import FASTCHAT_FILE
from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import warn_once
from tests.benchmarks.judged import KEY
from tests.support.judge_stub import JudgeStub, judging
from tests.support.paths import shared_file

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def untold() -> None:
    """What a process says once has not been said."""
    warn_once.cache_clear()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """``write(name, row, ...)``: a file below a fresh folder with one line per row, JSON unless it is a text."""

    def write(name: str, *rows: Any) -> Path:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
        path.write_text("".join(lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., Rows]:
    """``prepare(name, *arguments)``: the rows that the command writes."""

    def prepare(*arguments: str | Path) -> Rows:
        out = tmp_path / "new" / "out.jsonl"
        out.parent.mkdir(exist_ok=True)
        assert main(["data", "prepare", *map(str, arguments), "--out", str(out)]) == 0
        return [json.loads(line) for line in out.read_text(encoding="utf-8").removesuffix("\n").split("\n")]

    return prepare


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``refused(name, *arguments)``: the one line that the command fails with; nothing is written."""

    def refused(*arguments: str | Path) -> str:
        out = tmp_path / "refused" / "out.jsonl"
        out.parent.mkdir(exist_ok=True)
        assert main(["data", "prepare", *map(str, arguments), "--out", str(out)]) == 2
        assert not list(out.parent.iterdir())
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    return refused


@pytest.fixture
def official() -> Path:
    """FastChat's prompts for a judge."""
    return shared_file("data", "mt_bench", FASTCHAT_FILE)


@pytest.fixture
def treasure(tmp_path: Path) -> Iterator[Path]:
    """A file that everybody may write, and nobody has when the test is over."""
    path = tmp_path / "treasure.txt"
    path.write_text("gold", encoding="utf-8")
    path.chmod(0o666)
    yield path
    assert path.read_text(encoding="utf-8") == "gold"
    assert [found.name for found in tmp_path.iterdir()] == ["treasure.txt"]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeStub]:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with judging() as server:
        yield server
