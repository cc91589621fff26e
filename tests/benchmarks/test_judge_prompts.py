"""Judge prompts and ratings, compared with the official evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ianvs_specdec.benchmarks.judge_prompts import (
    FASTCHAT_FILE,
    SHIPPED,
    conversations,
    find_official,
    rating,
    read_prompts,
)
from ianvs_specdec.common.errors import UserError

QUESTION = ["What is {2} + 2?", "And times 3?"]
ANSWERS = ["{4}", "It is 12."]
REFERENCES = ["4", "12"]


def asked(group: str, turns: int = 2, path: Path = SHIPPED) -> list[list[dict[str, str]]]:
    return conversations(read_prompts(path), QUESTION[:turns], ANSWERS[:turns], REFERENCES[:turns], group)


def test_each_turn_is_judged_by_itself_and_the_second_in_its_context() -> None:
    first, second = asked("writing")
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[1]["content"] == "<question>\nWhat is {2} + 2?\n</question>\n\n<reply>\n{4}\n</reply>"
    assert [line for line in second[1]["content"].splitlines() if line and not line.startswith("<")] == [
        *("What is {2} + 2?", "{4}", "And times 3?", "It is 12.")
    ]
    assert "second reply" in second[0]["content"]
    assert not any("model solution" in message["content"] for messages in (first, second) for message in messages)


def test_our_prompts_request_a_parsable_rating() -> None:
    assert read_prompts().name == "specdec-judge-v1"
    assert read_prompts().digest.startswith("b5ef848ba92cdd40"), "other words need another name"
    for group in ("writing", "math"):
        for system, _ in asked(group):
            form = re.findall(r".*\[\[N\]\].*", system["content"])
            assert form == ["Grade: [[N]]"]
            assert rating(system["content"]) is None, "a judge that repeats what it is told has given no rating"
            assert [rating(form[0].replace("N", str(number))) for number in range(1, 11)] == [*range(1, 11)]


def test_the_official_prompts(official: Path, tmp_path: Path) -> None:
    prompts = read_prompts(official)
    assert (prompts.name, prompts.official) == ("MT-Bench official (FastChat)", True)
    lines = official.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "renamed.jsonl").write_text("".join(line for line in lines if '"single' in line), encoding="utf-8")
    assert read_prompts(tmp_path / "renamed.jsonl") == prompts
    (tmp_path / "changed.jsonl").write_text("".join(lines).replace("impartial", "partial"), encoding="utf-8")
    assert read_prompts(tmp_path / "changed.jsonl").official is False


def test_our_prompts_share_no_sentence_with_the_official(official: Path) -> None:
    def runs(path: Path) -> set[tuple[str, ...]]:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        texts = [re.findall(r"[a-z0-9']+", f"{row['system_prompt']} {row['prompt_template']}".lower()) for row in rows]
        return {tuple(words[at : at + 8]) for words in texts for at in range(len(words) - 7)}

    assert min(map(len, (runs(official), runs(SHIPPED)))) > 100
    assert not runs(official) & runs(SHIPPED)


@pytest.mark.parametrize("given", ["data/mt_bench/question.jsonl", "."])
def test_the_official_prompts_are_found_in_a_checkout(tmp_path: Path, given: str) -> None:
    (tmp_path / "data" / "mt_bench").mkdir(parents=True)
    (tmp_path / "data" / "mt_bench" / "question.jsonl").touch()
    assert find_official([tmp_path / given]) is None
    (tmp_path / "data" / FASTCHAT_FILE).touch()
    assert find_official([tmp_path / "elsewhere" / "q.jsonl", tmp_path / given]) == tmp_path / "data" / FASTCHAT_FILE


def changed(path: Path, which: str, **values: object) -> Path:
    rows = [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]
    rows = [{**row, **values} if row["name"] == which else row for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt_template": "Judge {answer} to {qestion}"}, "can hold only {question}, {answer} (other braces"),
        ({"prompt_template": 5}, "'prompt_template' must be a text"),
        ({"name": "single-v2"}, "no prompt of the name single-v1; expected a file like FastChat's"),
    ],
)
def test_invalid_prompt_files_are_errors(tmp_path: Path, values: dict[str, object], message: str) -> None:
    path = changed(tmp_path / "prompts.jsonl", "single-v1", **values)
    with pytest.raises(UserError) as error:
        read_prompts(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
