"""MT-Bench, Spec-Bench, HumanEval and GSM8K as data files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.benchmarks.spec_bench import CATEGORIES

Rows = list[dict[str, Any]]

WRITING = {"question_id": 81, "category": "writing", "turns": ["a", "b"]}
MATH = {"question_id": 101, "category": "math", "turns": ["c", "d"], "reference": ["own", "two"]}
ANSWERED = {"question_id": 101, "choices": [{"index": 0, "turns": ["x", "y"]}]}


def test_mt_bench(write: Callable[..., Path], prepare: Callable[..., Rows], refused: Callable[..., str]) -> None:
    folder = write("question.jsonl", WRITING, MATH).parent
    first, second = prepare("mt_bench", "--from", folder)
    assert first["question"] == {"turns": ["a", "b"], "id": "81", "group": "writing", "scorer": "judge"}
    assert (first["answer"], second["answer"]) == ({"references": []}, {"references": ["own", "two"]})
    given = write("elsewhere/answers.jsonl", ANSWERED)
    (_, second) = prepare("mt_bench", "--from", folder, "--references", given, "--scorer", "text")
    assert (second["answer"], second["question"]["scorer"]) == ({"references": ["x", "y"]}, "text")
    write("reference_answer/gpt-4.jsonl", ANSWERED)
    assert prepare("mt_bench", "--from", folder)[1]["answer"] == {"references": ["x", "y"]}
    strange = write("elsewhere/strange.jsonl", {**ANSWERED, "question_id": 999})
    assert "for none of the questions" in refused("mt_bench", "--from", folder, "--references", strange)
    for row, message in (
        ({**MATH, "turns": "a"}, "question.jsonl:2: 'turns' must be a list of texts"),
        ({**WRITING, "turns": ["c"]}, "the question 81 is there twice"),
    ):
        assert message in refused("mt_bench", "--from", write("malformed/question.jsonl", WRITING, row))
    broken = write("elsewhere/broken.jsonl", ANSWERED, {"question_id": 1, "choices": [{"turns": "x"}]})
    message = refused("mt_bench", "--from", folder, "--references", broken)
    assert "broken.jsonl:2: 'choices' must begin with an object" in message


def test_the_judge_prompts_are_reported(
    write: Callable[..., Path], prepare: Callable[..., Rows], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write("data/mt_bench/question.jsonl", WRITING).parent
    prepare("mt_bench", "--from", folder)
    (told,) = capsys.readouterr().out.splitlines()[1:]
    assert "judge_prompts.jsonl is not there, so the judge's prompts are specdec-judge-v1" in told
    path = write("data/judge_prompts.jsonl", "{}")
    prepare("mt_bench", "--from", folder)
    assert yaml.safe_load(capsys.readouterr().out.splitlines()[-1]) == [{"judge_prompts": {"values": [str(path)]}}]
    prepare("mt_bench", "--from", folder, "--scorer", "none")
    assert "judge_prompts:" not in capsys.readouterr().out


def test_official_temperatures(write: Callable[..., Path], prepare: Callable[..., Rows], refused: Any) -> None:
    rows = prepare("mt_bench", "--from", write("question.jsonl", WRITING, MATH), "--official-temperature")
    assert [row["question"]["temperature"] for row in rows] == [0.7, 0.0]
    assert [query_of(row["question"]).temperature for row in rows] == [0.7, 0.0]
    other = write("question.jsonl", WRITING, {**MATH, "category": "cooking"})
    message = refused("mt_bench", "--from", other, "--official-temperature")
    assert "question.jsonl:2: MT-Bench has no category 'cooking'" in message


def test_the_public_mt_bench_and_humaneval(shared: Path, prepare: Callable[..., Rows]) -> None:
    assert len(prepare("humaneval", "--from", shared / "data" / "humaneval")) == 164
    rows = prepare("mt_bench", "--from", shared / "data" / "mt_bench")
    assert len(rows) == 80
    assert sum(bool(row["answer"]["references"]) for row in rows) == 30
    assert all(len(row["question"]["turns"]) == 2 for row in rows)


def test_spec_bench(write: Callable[..., Path], prepare: Callable[..., Rows]) -> None:
    rag = {"question_id": 481, "category": "rag", "turns": ["?"], "reference": [["one", "two"]]}
    source = write("question.jsonl", WRITING, rag, {**rag, "question_id": 482, "reference": "only"})
    rows = prepare("spec_bench", "--from", source)
    assert [row["question"]["scorer"] for row in rows] == ["none"] * 3
    assert [row["answer"]["references"] for row in rows] == [[], ["one, two"], ["only"]]
    assert prepare("spec_bench", "--from", source, "--scorer", "text")[0]["question"]["scorer"] == "text"


def test_the_public_spec_bench_has_six_types(shared: Path, prepare: Callable[..., Rows]) -> None:
    rows = prepare("spec_bench", "--from", shared / "data" / "spec_bench")
    types = Counter(name for row in rows for name, groups in CATEGORIES.items() if row["question"]["group"] in groups)
    assert types == {name: 80 if name == "multi-turn conversation" else 20 for name in CATEGORIES}
    assert len(CATEGORIES) == 6


PROBLEM = {
    "task_id": "HumanEval/0",
    "prompt": 'def one():\n    """One."""\n',
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}


def test_humaneval(write: Callable[..., Path], prepare: Callable[..., Rows], refused: Callable[..., str]) -> None:
    source = write("HumanEval.jsonl", PROBLEM)
    (row,) = prepare("humaneval", "--from", source)
    (text,) = row["question"]["turns"]
    assert f"```python\n{PROBLEM['prompt']}```" in text
    assert row["question"] == {"turns": [text], "id": "HumanEval/0", "group": "humaneval", "scorer": "code"}
    assert row["answer"] == {key: PROBLEM[key] for key in ("prompt", "entry_point", "test")}
    assert "canonical" not in json.dumps(row)
    (row,) = prepare("humaneval", "--from", source.parent, "--raw")
    assert row["question"]["turns"] == [PROBLEM["prompt"]]
    broken = write("HumanEval.jsonl", PROBLEM, {**PROBLEM, "task_id": "HumanEval/1", "test": None})
    assert "HumanEval.jsonl:2: 'test' must be a text" in refused("humaneval", "--from", broken)


ASKED = {"question": "Tom has 2 nuts and 1,000 more. How many?", "answer": "2+1000=<<2+1000=1002>>1002\n#### 1,002"}
FIRST = {"question": "1+1?", "answer": "It is 2.\n#### 2"}
SECOND = {"question": "3-5?", "answer": "It is -2.\n#### -2"}


def test_gsm8k(write: Callable[..., Path], prepare: Callable[..., Rows]) -> None:
    folder = write("test.jsonl", ASKED, SECOND).parent
    write("train.jsonl", FIRST, SECOND, ASKED)
    rows = prepare("gsm8k", "--from", folder)
    assert [row["answer"] for row in rows] == ["1002", "-2"]
    assert rows[0]["question"] == {
        "turns": ["Q: Tom has 2 nuts and 1,000 more. How many?\nA: Let's think step by step."],
        "id": "gsm8k-0001",
        "group": "gsm8k",
        "scorer": "number",
    }
    rows = prepare("gsm8k", "--from", folder, "--shots", "2")
    assert rows[0]["question"]["turns"] == [
        "Question: 1+1?\nAnswer: It is 2.\n#### 2\n\n"
        "Question: 3-5?\nAnswer: It is -2.\n#### -2\n\n"
        "Question: Tom has 2 nuts and 1,000 more. How many?\nAnswer:"
    ]
    rows = prepare("gsm8k", "--from", folder, "--shots", "2", "--max-characters", "120")
    assert rows[0]["question"]["turns"][0].count("Question:") == 2


def test_a_problem_without_a_number(write: Callable[..., Path], refused: Callable[..., str]) -> None:
    message = refused("gsm8k", "--from", write("test.jsonl", ASKED, {"question": "?", "answer": "It is 5."}))
    assert "test.jsonl:2: 'answer' must end in a line '#### NUMBER'" in message


@pytest.mark.slow
def test_the_public_gsm8k(shared: Path, prepare: Callable[..., Rows]) -> None:
    rows = prepare("gsm8k", "--from", shared / "data" / "gsm8k", "--shots", "8")
    assert len(rows) == 660
    assert all(row["question"]["turns"][0].count("Question: ") == 9 for row in rows)
