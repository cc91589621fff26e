"""``specdec data prepare hf``: any data set that the library ``datasets`` reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub import hub

datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra data)")

Rows = list[dict[str, Any]]
COLUMNS = ("--question", "q", "--answer", "a")
ITEM = {"q": "Which?", "c": ["one", "two", "three"], "a": 1, "s": "letters"}
ASKED = "Which?\nA. one\nB. two\nC. three\nAnswer:"


def saved(path: Path, *rows: dict[str, Any]) -> Path:
    """The rows in a file of the kind that its name tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(list(rows)).to_parquet(str(path))
    elif path.suffix == ".csv":
        datasets.Dataset.from_list(list(rows)).to_csv(str(path))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["data.parquet", "data.json", "one/test.jsonl"])
def test_files_and_folders(tmp_path: Path, prepare: Callable[..., Rows], name: str) -> None:
    path = saved(tmp_path / name, ITEM, {**ITEM, "a": 2})
    given = path.parent if "/" in name else path
    rows = prepare("hf", "--path", given, *COLUMNS, "--choices", "c", "--group", "s")
    stem = given.name.partition(".")[0]
    assert rows == [
        {
            "question": {"turns": [ASKED], "id": f"{stem}-000{n}", "group": "letters", "scorer": "choice"},
            "answer": letter,
        }
        for n, letter in ((1, "B"), (2, "C"))
    ]


def test_csv_cells_stay_texts(tmp_path: Path, prepare: Callable[..., Rows]) -> None:
    path = tmp_path / "data.csv"
    path.write_text("q,a\nWhich agent?,007\nSodium?,NA\nHow much?,1.50\nOpen?,\n", encoding="utf-8")
    assert [row["answer"] for row in prepare("hf", "--path", path, *COLUMNS)] == ["007", "NA", "1.50", None]


@pytest.mark.parametrize(
    ("rows", "letters"), [("?,2,0,1,1\n?,0,1,2,0\n", "BA"), ("?,20,0,1,20\n?,0,1,2,1\n", "AB")], ids=["number", "text"]
)
def test_numeric_answers_are_indices_if_all_can_be(
    tmp_path: Path, prepare: Callable[..., Rows], rows: str, letters: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"q,x,y,z,a\n{rows}", encoding="utf-8")
    found = prepare("hf", "--path", path, *COLUMNS, "--choices", "x", "y", "z")
    assert [row["answer"] for row in found] == list(letters)


@pytest.mark.parametrize("folder", [False, True])
def test_tsv_files(tmp_path: Path, prepare: Callable[..., Rows], folder: bool) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "test.tsv"
    path.write_text("q\ta\nHow much is 3, 4 and 05?\t012\n", encoding="utf-8")
    (row,) = prepare("hf", "--path", path.parent if folder else path, *COLUMNS)
    assert (row["question"]["turns"], row["answer"]) == (["How much is 3, 4 and 05?"], "012")


@pytest.mark.parametrize(
    ("choices", "answer", "letter"),
    [
        (["x", "y"], 0, "A"), (["x", "y"], "1", "B"), (["1", "2"], "1", "A"), (["B", "A"], "A", "A"),
        ({"text": ["x", "y"], "label": ["1", "2"]}, "1", "A"),
    ],
)  # fmt: skip
def test_forms_of_the_right_answer(
    tmp_path: Path, prepare: Callable[..., Rows], choices: Any, answer: Any, letter: str
) -> None:
    path = saved(tmp_path / "data.jsonl", {"q": "?", "c": choices, "a": answer})
    assert prepare("hf", "--path", path, *COLUMNS, "--choices", "c")[0]["answer"] == letter


def test_questions_without_options(tmp_path: Path, prepare: Callable[..., Rows]) -> None:
    path = saved(tmp_path / "data.jsonl", {"q": "Why?", "a": "So."})
    (row,) = prepare("hf", "--path", path, *COLUMNS)
    assert (row["question"]["turns"], row["question"]["scorer"], row["answer"]) == (["Why?"], "text", "So.")
    path = saved(tmp_path / "data.jsonl", {"q": ["Why?", "And?"], "a": ["So.", "Thus."]})
    (row,) = prepare("hf", "--path", path, *COLUMNS)
    assert (row["question"]["turns"], row["answer"]) == (["Why?", "And?"], {"references": ["So.", "Thus."]})
    path = saved(tmp_path / "data.jsonl", {"q": "1 + 1?", "a": 2})
    assert prepare("hf", "--path", path, *COLUMNS, "--scorer", "number")[0]["answer"] == 2


def test_saved_data_sets_and_class_labels(tmp_path: Path, prepare: Callable[..., Rows]) -> None:
    features = datasets.Features({"q": datasets.Value("string"), "a": datasets.ClassLabel(names=["bad", "good"])})
    table = datasets.Dataset.from_dict({"q": ["Well?"], "a": [1]}, features=features)
    table.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": table, "dev": table}).save_to_disk(str(tmp_path / "two"))
    assert prepare("hf", "--path", tmp_path / "one", *COLUMNS)[0]["answer"] == "good"
    assert prepare("hf", "--path", tmp_path / "two", *COLUMNS, "--split", "dev")[0]["answer"] == "good"
    (row,) = prepare("hf", "--path", tmp_path / "one", *COLUMNS, "--group", "a")
    assert row["question"]["group"] == "good"


def test_invalid_hf_options_are_errors(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = saved(tmp_path / "in" / "train.jsonl", ITEM)
    saved(tmp_path / "in" / "validation.jsonl", ITEM)
    told = [
        (path, ("--question", "Q", "--answer", "a"), "unknown column 'Q'. Did you mean 'q'? Known: a, c, q, s"),
        (path, (*COLUMNS, "--choices", "s"), "row 1: s must hold a list of texts"),
        (path, ("--question", "a", "--answer", "q"), "row 1: 'a' must be a text or a list of texts, not 1"),
        (path.parent, COLUMNS, "has several splits, train, validation: name one with --split"),
        (path.parent, (*COLUMNS, "--split", "trian"), "unknown split 'trian'. Did you mean 'train'?"),
        (tmp_path / "none", COLUMNS, "there is no file or folder"),
        (path, (*COLUMNS, "--scorer", "number", "--answer", "s"), "the answer: scorer number cannot read 'letters'"),
    ]
    for given, options, message in told:
        assert message in refused("hf", "--path", given, *options)
    for change, message in (
        ({"a": 3}, "row 1: 'a' names none of the 3 options"),
        ({"a": None}, "row 1: 'a' names none of the 3 options"),
        ({"c": ["x"] * 11}, "11 options; there must be 2 to 10"),
    ):
        saved(path, {**ITEM, **change})
        assert message in refused("hf", "--path", path, *COLUMNS, "--choices", "c")
    saved(path, {**ITEM, "q": "  "})
    assert "row 1: the question: turn 1 of 'turns' is blank" in refused("hf", "--path", path, *COLUMNS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"q": 1}\n{"q"'), ("a.csv", b"q,a\n1,2\n1,2,3\n"), ("a.parquet", b"PAR1"), ("a.jsonl", b""),
        ("a.txt", b"x"), ("in/a.py", b"raise SystemExit"),
    ],
)  # fmt: skip
def test_unreadable_files_are_errors(tmp_path: Path, refused: Callable[..., str], name: str, content: bytes) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    given = path.parent if "/" in name else path
    message = refused("hf", "--path", given, *COLUMNS)
    assert message.startswith(f"specdec data: {given}: ")
    assert len(message) < 600


def test_an_unreachable_hub_is_an_error(monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]) -> None:
    """The library itself would ask again and again."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.load_dataset", lambda *place, **kind: pytest.fail("it was asked"))
    message = refused("hf", "--path", "owner/name", *COLUMNS)
    assert "cannot get the data set owner/name from the Hugging Face hub" in message
    assert "HF_HUB_OFFLINE=1" in message


def specdec(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ianvs_specdec.commands.cli", "data", "prepare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=100)


@pytest.mark.slow
def test_the_hub(tmp_path: Path) -> None:
    repository, out = tmp_path / "repository", tmp_path / "out.jsonl"
    saved(repository / "main" / "test-00000-of-00001.parquet", ITEM)
    saved(repository / "main" / "train-00000-of-00001.parquet", ITEM, ITEM)
    saved(repository / "other" / "test-00000-of-00001.parquet", ITEM, ITEM, ITEM)
    configurations = "".join(
        f"- config_name: {name}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {name}/{split}-*\n" for split in splits)
        for name, splits in (("main", ("train", "test")), ("other", ("test",)))
    )
    (repository / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n", encoding="utf-8")
    asked = ("hf", "--path", "owner/name", *COLUMNS, "--choices", "c", "--out", out)
    with hub("owner/name", repository) as address:
        online = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        for name, split, count in (("main", "test", 1), ("main", "train", 2), ("other", "test", 3)):
            done = specdec(*asked, "--name", name, "--split", split, **online)
            assert (done.returncode, done.stderr) == (0, "")
            assert len(out.read_text().splitlines()) == count
        for options in ((), ("--name", "mian")):
            done = specdec(*asked, *options, **online)
            assert done.returncode == 2
            assert "main" in done.stderr
            assert done.stderr.count("\n") == 1
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    assert specdec(*asked, "--name", "other", **offline).returncode == 0
    assert len(out.read_text().splitlines()) == 3
