"""``specdec data``: original files in, Ianvs data files out; malformed input is one message and writes nothing."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.cli import main

QUESTION = {"subject": "abstract_algebra", "question": "2 + 2?", "choices": ["3", "4", "5", "6"], "answer": "B"}
ZERO_SHOT = (
    "The following are multiple choice questions (with answers) about  abstract algebra.\n\n"
    "2 + 2?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:"
)


@pytest.fixture
def shared() -> Path:
    folder = Path(os.environ.get("SPECDEC_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no reference fixtures: {folder} is not there (set SPECDEC_SHARED)")
    return folder


def write(path: Path, *rows: Any) -> str:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return str(path)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_mmlu_prompts_have_the_original_format(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.jsonl"
    assert (
        main(["data", "mmlu", write(tmp_path / "t.jsonl", QUESTION, "", {**QUESTION, "answer": 2}), "--out", str(out)])
        == 0
    )
    first, second = read(out)
    assert first["question"]["turns"] == [ZERO_SHOT]
    assert (first["answer"], second["answer"]) == ("B", "C")
    assert first["question"]["group"] == "abstract_algebra"
    assert query_of(first["question"], first["answer"], 0).scorer == "choice"


def test_mmlu_worked_examples_come_from_the_subject(tmp_path: Path) -> None:
    other = {**QUESTION, "subject": "anatomy"}
    dev = write(tmp_path / "dev.jsonl", other, {**QUESTION, "question": "1 + 1?"}, {**QUESTION, "question": "1 + 2?"})
    out = tmp_path / "out.jsonl"
    arguments = ["data", "mmlu", write(tmp_path / "t.jsonl", QUESTION), "--dev", dev, "--out", str(out)]
    assert main([*arguments, "--shots", "2"]) == 0
    heading, _, question = ZERO_SHOT.partition("\n\n")
    worked = "".join(f"{text}\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer: B\n\n" for text in ("1 + 1?", "1 + 2?"))
    assert read(out)[0]["question"]["turns"] == [f"{heading}\n\n{worked}{question}"]
    assert main([*arguments, "--shots", "3"]) == 2


def test_mmlu_reads_the_original_csv(tmp_path: Path) -> None:
    (tmp_path / "abstract_algebra_test.csv").write_text('"2, or\n3?",3,4,5,6,B\n')
    out = tmp_path / "out.jsonl"
    assert main(["data", "mmlu", str(tmp_path / "abstract_algebra_test.csv"), "--out", str(out)]) == 0
    row = read(out)[0]
    assert row["question"]["turns"][0] == ZERO_SHOT.replace("2 + 2?", "2, or\n3?")


def test_mmlu_limit_spreads_over_the_files(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{subject}.jsonl", *({**QUESTION, "subject": subject} for _ in range(10)))
        for subject in "abcd"
    ]
    out = tmp_path / "out.jsonl"
    assert main(["data", "mmlu", *files, "--limit", "4", "--out", str(out)]) == 0
    assert [row["question"]["group"] for row in read(out)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "t.jsonl:2: not JSON"),
        ("[1]", "t.jsonl:2: expected an object"),
        ({**QUESTION, "answer": "E"}, "t.jsonl:2: the answer must be a letter from A to D"),
        ({**QUESTION, "choices": ["1"]}, "t.jsonl:2: 'choices' must hold four options"),
        (
            {key: value for key, value in QUESTION.items() if key != "subject"},
            "t.jsonl:2: the key 'subject' is missing",
        ),
    ],
)
def test_malformed_mmlu_is_told_with_file_and_line(
    tmp_path: Path, line: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["data", "mmlu", write(tmp_path / "t.jsonl", QUESTION, line), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_malformed_files_and_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "t.jsonl", QUESTION)
    (tmp_path / "short.csv").write_text("a,b\n")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "no.jsonl.gz").write_bytes(b"not gzip")
    empty = write(tmp_path / "empty.jsonl")
    for arguments, message in (
        ([str(tmp_path / "missing.jsonl"), "--out", "o.jsonl"], "there is no file"),
        ([str(tmp_path / "short.csv"), "--out", "o.jsonl"], "short.csv:1: expected 6 columns"),
        ([str(tmp_path / "bytes.jsonl"), "--out", "o.jsonl"], "cannot be read"),
        ([str(tmp_path / "no.jsonl.gz"), "--out", "o.jsonl"], "cannot be read"),
        ([empty, "--out", str(tmp_path / "o.jsonl")], "no questions"),
        ([good, "--out", str(tmp_path / "o.json")], ".jsonl"),
        ([good, "--out", str(tmp_path / "o.jsonl"), "--shots", "1"], "--dev"),
    ):
        assert main(["data", "mmlu", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "o.jsonl").exists()


def test_mt_bench_with_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = write(
        tmp_path / "q.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["a", "b"]},
        {"question_id": 101, "category": "math", "turns": ["c", "d"]},
    )
    references = write(tmp_path / "r.jsonl", {"question_id": 101, "choices": [{"index": 0, "turns": ["x", "y"]}]})
    out = tmp_path / "out.jsonl"
    assert main(["data", "mt_bench", "--questions", questions, "--references", references, "--out", str(out)]) == 0
    first, second = read(out)
    assert first == {
        "question": {"turns": ["a", "b"], "id": "81", "group": "writing", "scorer": "none"},
        "answer": {"references": []},
    }
    assert second["answer"] == {"references": ["x", "y"]}
    strange = write(tmp_path / "s.jsonl", {"question_id": 999, "choices": [{"turns": ["x"]}]})
    assert main(["data", "mt_bench", "--questions", questions, "--references", strange, "--out", str(out)]) == 2
    assert "no reference for any question" in capsys.readouterr().err


def test_the_public_files(tmp_path: Path, shared: Path) -> None:
    out = tmp_path / "mmlu.jsonl"
    assert (
        main(["data", "mmlu", str(shared / "mmlu" / "mmlu_test.jsonl.gz"), "--limit", "1000", "--out", str(out)]) == 0
    )
    rows = read(out)
    assert len(rows) == 1000
    assert len({row["question"]["group"] for row in rows}) == 57
    with gzip.open(shared / "mmlu" / "mmlu_test.jsonl.gz", "rt") as file:
        assert json.loads(file.readline())["question"] in rows[0]["question"]["turns"][0]
    out = tmp_path / "mt.jsonl"
    folder = shared / "mt_bench"
    references = str(folder / "reference_answer" / "gpt-4.jsonl")
    questions = str(folder / "question.jsonl")
    assert main(["data", "mt_bench", "--questions", questions, "--references", references, "--out", str(out)]) == 0
    rows = read(out)
    assert len(rows) == 80
    assert sum(bool(row["answer"]["references"]) for row in rows) == 30
    assert all(len(row["question"]["turns"]) == 2 for row in rows)
