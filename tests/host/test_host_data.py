"""Data rows: malformed rows with both policies, and rows as objects."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sedna.datasources import JsonlDataParse, JSONMetaDataParse
from tests.host.host_job import Job

GOOD = {"question": "q A", "answer": "A"}
MALFORMED = [
    ('{"question": "q"', "not JSON"),
    ('["q", "a"]', "a row must be a JSON object, this is list"),
    ('{"question": "q"}', "the key 'answer' is missing"),
    ("", "blank line"),
    ('{"question": 3, "answer": "A"}', "'question' must be a text or an object, this is 3"),
    ('{"question": "", "answer": "A"}', "'question' is empty"),
]


@pytest.mark.parametrize(("row", "reason"), MALFORMED)
def test_a_malformed_row_is_an_error_before_the_run(
    job: Job, capfd: pytest.CaptureFixture[str], row: str, reason: str
) -> None:
    job.rows([GOOD, GOOD, row, GOOD])
    assert job.run() == 2
    error = capfd.readouterr().err
    assert f"data.jsonl:3: {reason}" in error
    assert "on_malformed_row: skip" in error
    assert "Traceback" not in error
    assert not (job.folder / "workspace").exists()


def test_malformed_rows_are_skipped_and_counted(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    row = '{"question": "q"}'
    job.rows([GOOD, row, GOOD, row, GOOD])
    job.env["on_malformed_row"] = "skip"
    assert job.run() == 0
    error = capfd.readouterr().err
    assert "2 malformed rows left out: data.jsonl:2: the key 'answer' is missing" in error
    environment = json.loads((job.case_folder() / "environment.json").read_text())
    assert (environment["run"]["queries"], environment["run"]["malformed_rows_left_out"]) == (3, 2)


@pytest.mark.parametrize(
    "content",
    [json.dumps([GOOD]).encode(), b"question,answer\nq,A\n", b"\x1f\x8b\x08\xff\n"],
    ids=["array", "CSV", "binary"],
)
def test_a_file_of_another_format(job: Job, capfd: pytest.CaptureFixture[str], content: bytes) -> None:
    (job.folder / "data.jsonl").write_bytes(content)
    assert job.run() == 2
    error = capfd.readouterr().err
    assert "data.jsonl:1: " in error
    assert "one JSON object per line" in error
    assert "on_malformed_row" not in error


def test_blank_lines_at_the_end_are_accepted(job: Job) -> None:
    (job.folder / "data.jsonl").write_text(json.dumps(GOOD) + "\n\n  \n")
    assert job.run() == 0


def test_bytes_that_are_not_utf8(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    (job.folder / "data.jsonl").write_bytes(
        b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n" + b'{"question": "\xff"}\n'
    )
    assert job.run() == 2
    assert "data.jsonl:2: not UTF-8 text (byte 15 of the line)" in capfd.readouterr().err


def test_a_file_of_malformed_rows_only(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.rows(["x", "y"])
    job.env["on_malformed_row"] = "skip"
    assert job.run() == 2
    assert "no rows, all are malformed" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ('{"dataset": "d"}', "metadata.json:1: the key 'description', 'level_1_dim', 'level_2_dim' is missing"),
        ("{\n", "metadata.json:2: not JSON"),
        ("[" * 100_000, "metadata.json:1: not usable JSON: nested too deeply"),
        ('{"dataset": ' + "9" * 10_000 + "}", "metadata.json:1: not JSON: Exceeds the limit"),
    ],
    ids=["keys", "JSON", "depth", "digits"],
)
def test_metadata_that_cannot_be_read(
    job: Job, capfd: pytest.CaptureFixture[str], described: str, message: str
) -> None:
    (job.folder / "metadata.json").write_text(described)
    job.env["dataset"] = {"test_data_info": "metadata.json"}
    assert job.run() == 2
    assert message in capfd.readouterr().err


def test_metadata_without_its_data(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    folder = job.folder / "alone"
    folder.mkdir()
    (folder / "metadata.json").write_text("{}")
    job.env["dataset"] = {"test_data_info": "alone/metadata.json"}
    assert job.run() == 2
    assert "data.jsonl, which belongs to alone/metadata.json" in capfd.readouterr().err.replace("\\", "/")


def test_the_prompt_of_a_metadata_set_precedes_the_query(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "metadata.json").write_text(json.dumps(dict.fromkeys(JSONMetaDataParse.described, "")))
    row = {"prompt": "Answer. ", "query": "Why?", "response": "r", "level_3_dim": "", "level_4_dim": ""}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    source = JSONMetaDataParse("test")
    source.parse(str(tmp_path / "metadata.json"))
    assert (list(source.x), list(source.y)) == (["Answer. Why?"], ["r"])


def test_rows_stay_objects(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """One long row must not widen the others, and rows of lists must not become a matrix."""
    file = tmp_path / "rows.jsonl"
    rows = [{"question": ["a", "b"], "answer": {"k": 1}}, {"question": "x" * 100_000, "answer": "A"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    source = JsonlDataParse("test")
    source.parse(str(file))
    assert source.x.dtype == source.y.dtype == np.dtype(object)
    assert [list(source.x), list(source.y)] == [[r["question"] for r in rows], [r["answer"] for r in rows]]
    assert len(source) == 2


def test_each_test_case_has_its_own_copy_of_the_rows(job: Job) -> None:
    job.rows([{"question": {"turns": ["A"]}, "answer": "A"}] * 2)
    body = """
    def __init__(self, tag=""):
        pass
    def predict(self, data):
        return {"prediction": data["turns"].pop()}
    """
    job.define("algo/edge_model.py", "EdgeModel", body)
    job.hyperparameters(0, tag=["first", "second"])
    assert job.run() == 0
    assert [row["Accuracy"] for row in job.leaderboard()] == ["100.0", "100.0"]
