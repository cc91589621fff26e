"""Where files come from: named files, folders, archives, the hub; what cannot be read is one message."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main

Rows = list[dict[str, Any]]
ITEM = {"subject": "anatomy", "question": "?", "choices": ["1", "2", "3", "4"], "answer": 0}
PROBLEM = {"question": "?", "answer": "#### 1"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str | None]]:
    """A hub that has what lies below tmp_path / "hub"; the list of what was asked of it."""
    asked: list[tuple[str, str, str | None]] = []

    def download(repo_id: str, filename: str, *, repo_type: str | None = None) -> str:
        asked.append((repo_id, filename, repo_type))
        return str(tmp_path / "hub" / repo_id / filename)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *place, **kind: "cached")
    return asked


def test_without_from_the_hub_is_asked(
    hub: list[Any], tmp_path: Path, prepare: Callable[..., Rows], refused: Callable[..., str]
) -> None:
    folder = tmp_path / "hub" / "HuggingFaceH4" / "mt_bench_prompts" / "raw"
    folder.mkdir(parents=True)
    row = {"prompt_id": 97, "category": "math", "prompt": ["a", "b"], "reference": []}
    (folder / "question.jsonl").write_text(json.dumps(row) + "\n")
    assert len(prepare("mt_bench")) == 1
    assert hub == [("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl", "dataset")]


@pytest.mark.parametrize("offline", [True, False])
def test_without_network_one_message_says_at_once_what_to_do(
    offline: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """The download itself would ask again and again."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    if not offline:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *place, **kind: pytest.fail("it was begun"))
    message = refused("mmlu")
    assert "cannot get " in message
    assert "from the Hugging Face hub" in message
    assert "--from" in message


def test_a_folder_with_several_copies_gives_one(write: Callable[..., Path], prepare: Callable[..., Rows]) -> None:
    folder = write("mmlu_test.jsonl", ITEM).parent
    write("test/anatomy_test.csv", "?,1,2,3,4,A", "!,1,2,3,4,B")
    write(".cache/test/anatomy_test.csv", "not read")
    assert len(prepare("mmlu", "--from", folder)) == 2


def test_what_is_not_there(tmp_path: Path, write: Callable[..., Path], refused: Callable[..., str]) -> None:
    assert "there is no file" in refused("mmlu", "--from", tmp_path / "missing.jsonl")
    empty = write("empty.jsonl")
    assert "no questions" in refused("mmlu", "--from", empty)
    message = refused("mmlu", "--from", empty.parent)
    assert "holds no questions with the expected names (all/test-*.parquet" in message
    assert main(["data", "prepare", "mmlu", "--from", str(empty), "--out", str(tmp_path / "o.json")]) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\xff\xfe\n", "a.jsonl: cannot be read after line 0"),
        ("a.jsonl", json.dumps(PROBLEM).encode() + b"\n{", "a.jsonl:2: not JSON"),
        ("a.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], "a.jsonl.gz: cannot be read after line 0"),
        ("a.json", b"{}", "a.json: expected a list of objects"),
        ("a.json", b"[1]", "a.json: element 1: expected an object"),
        ("a.csv", b"question,answer\n\xff,b\n", "a.csv: cannot be read after line"),
        ("a.csv", b"question,answer\na,b,c\n", "a.csv:2: 3 columns, but the header"),
        ("a.txt", b"a", "a.txt: unknown file type"),
    ],
)
def test_what_cannot_be_read(name: str, content: bytes, message: str, tmp_path: Path, refused: Any) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refused("gsm8k", "--from", tmp_path / name)


def test_parquet_without_the_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'datasets>=" in refused("gsm8k", "--from", tmp_path / "test.parquet")


def test_parquet(tmp_path: Path, prepare: Callable[..., Rows], refused: Callable[..., str]) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra data)")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "hub" / "all"
    folder.mkdir(parents=True)
    parquet.write_table(arrow.Table.from_pylist([ITEM, {**ITEM, "answer": 3}]), folder / "test-00000-of-00001.parquet")
    assert [row["answer"] for row in prepare("mmlu", "--from", tmp_path / "hub")] == ["A", "D"]
    own = tmp_path / "own" / "anatomy" / "test-00000-of-00001.parquet"
    own.parent.mkdir(parents=True)
    row = {name: value for name, value in ITEM.items() if name != "subject"}
    parquet.write_table(arrow.Table.from_pylist([row, {**row, "answer": 7}]), own)
    assert "parquet: row 2: the answer must be a letter" in refused("mmlu", "--from", own)
    parquet.write_table(arrow.Table.from_pylist([row]), own)
    assert prepare("mmlu", "--from", tmp_path / "own")[0]["question"]["group"] == "anatomy"
    own.write_bytes(b"PAR1 and no more")
    assert "cannot be read after row 0" in refused("mmlu", "--from", own)


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: list[Any]
) -> None:
    for out, reason in (
        (tmp_path / "no" / "out.jsonl", f"the folder {tmp_path / 'no'} does not exist"),
        (tmp_path, "is a folder"),
    ):
        assert main(["data", "prepare", "mmlu", "--out", str(out)]) == 2
        assert f"--out {out}" in (message := capsys.readouterr().err)
        assert reason in message
    assert not hub
    too_long = tmp_path / f"{'x' * 245}.jsonl"
    assert main(["data", "prepare", "world", "--set", "open-ended", "--out", str(too_long)]) == 2
    assert f"--out {too_long} cannot be written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
