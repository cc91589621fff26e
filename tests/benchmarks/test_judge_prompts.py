"""What the judge is asked and how its rating is read, against the official evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ianvs_specdec.benchmarks.judge_prompts import SHIPPED, conversations, rating, read_prompts
from ianvs_specdec.errors import UserError
from tests.support.paths import shared_file


@pytest.mark.parametrize(
    ("judgment", "expected"),
    [
        ("Rating: [[5]]", 5),
        ("[[1]]", 1),
        ("[[10]]", 10),
        ("The answer is good.\n\nRating: [[9]]", 9),
        ("Rating: [[7.5]]", 7.5),
        ("Rating: [[8.]]", 8),
        ("Rating: [[6.25]] as said", 6.25),
        ("I would say [[3]] or rather [[4]]", 3),
        ("Rating: [[8]]/[[10]]", 8),
        ("Rating: [8]", 8),
        ("Rating: [8.5]", 8.5),
        ("Source [1] says so. Rating: [[6]]", 6),
        ("Source [2] says so, see [3].", 2),
        ("The array [4, 5] is right. Rating: [7]", 7),
        ("a[0][1] is right. Rating: [[9]]", 9),
        ("[[[4]]]", 4),
        ("**Rating: [[10]]**", 10),
        ("Rating:\n[[2]]\n", 2),
        ("[[rating]]: [[5]]", 5),
        ("Rating: [[0]]", None),
        ("Rating: [[11]]", None),
        ("Rating: [[0.5]]", None),
        ("Rating: [[10.5]]", None),
        ("Rating: [[100]]", None),
        ("[[15]], that is, [[5]]", None),
        ("Rating: [[-3]]", None),
        ("Rating: [[8/10]]", None),
        ("Rating: [[ 8 ]]", None),
        ("Rating: [[rating]]", None),
        ("Rating: [[05]]", None),
        ("Rating: [[\u0665]]", None),
        ("Rating: [[eight]]", None),
        ("Rating: 8", None),
        ("Rating: (8)", None),
        ("Rating: [[8", None),
        ("Rating: [[.5]]", None),
        ("Rating: [[1e1]]", None),
        ("", None),
    ],
)
def test_the_rating(judgment: str, expected: float | None) -> None:
    assert rating(judgment) == expected


QUESTION = ["What is {2} + 2?", "And times 3?"]
ANSWERS = ["{4}", "It is 12."]
REFERENCES = ["4", "12"]


def asked(group: str, turns: int = 2) -> list[list[dict[str, str]]]:
    return conversations(read_prompts(), QUESTION[:turns], ANSWERS[:turns], REFERENCES[:turns], group)


def test_each_turn_is_judged_by_itself_and_the_second_in_its_context() -> None:
    first, second = asked("writing")
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[1]["content"].endswith(
        "[Question]\nWhat is {2} + 2?\n\n[The Start of Assistant's Answer]\n{4}\n[The End of Assistant's Answer]"
    )
    assert QUESTION[1] not in first[1]["content"]
    dialogue = (
        "### User:\nWhat is {2} + 2?\n\n### Assistant A:\n{4}\n\n### User:\nAnd times 3?\n\n### Assistant A:\nIt is 12."
    )
    assert dialogue in second[1]["content"]
    assert "second user question" in second[0]["content"]
    assert not any("Reference" in message["content"] for messages in (first, second) for message in messages)


@pytest.mark.parametrize("group", ["math", "reasoning", "coding"])
def test_three_categories_are_judged_against_references(group: str) -> None:
    first, second = asked(group)
    assert "[The Start of Reference Answer]\n4\n[The End of Reference Answer]" in first[1]["content"]
    for turn, reference in zip(QUESTION, REFERENCES, strict=True):
        assert f"### User:\n{turn}\n\n### Reference answer:\n{reference}\n" in second[1]["content"]


def test_a_question_of_one_turn_is_judged_once() -> None:
    assert len(asked("writing", turns=1)) == len(asked("math", turns=1)) == 1


def test_the_shipped_prompts_are_the_official_ones() -> None:
    official = shared_file("data", "mt_bench", "judge_prompts.jsonl")
    lines = official.read_text(encoding="utf-8").splitlines()
    shipped = SHIPPED.read_text(encoding="utf-8").splitlines()
    assert len(shipped) == 4
    assert set(shipped) <= set(lines)
    assert read_prompts(official) == read_prompts()


def changed(path: Path, which: str, **values: object) -> Path:
    rows = [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]
    rows = [{**row, **values} if row["name"] == which else row for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt_template": "Judge {answer} to {qestion}"}, "can hold only {question}, {answer} (other braces"),
        ({"prompt_template": "Judge {}"}, "can hold only"),
        ({"prompt_template": "Judge {answer"}, "can hold only"),
        ({"prompt_template": 5}, "'prompt_template' must be a text"),
        ({"name": "single-v2"}, "no prompt of the name single-v1; expected a file like FastChat's"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_used(tmp_path: Path, values: dict[str, object], message: str) -> None:
    path = changed(tmp_path / "prompts.jsonl", "single-v1", **values)
    with pytest.raises(UserError) as error:
        read_prompts(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_prompt_without_system_message(tmp_path: Path) -> None:
    prompts = read_prompts(changed(tmp_path / "prompts.jsonl", "single-v1", system_prompt=""))
    (messages,) = conversations(prompts, ["q"], ["a"], [], "writing")
    assert [message["role"] for message in messages] == ["user"]
