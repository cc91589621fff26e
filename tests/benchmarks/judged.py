"""Judged results of a test case, and judges with ratings by turn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ianvs_specdec.plugin.processor import DatasetProcessor
from ianvs_specdec.records.response import Response
from tests.support.judge_stub import JudgeStub

KEY = "sk-judge-0123456789"


def settings(stub: JudgeStub, **more: Any) -> dict[str, Any]:
    return {
        "judge_model": "gpt-4",
        "judge_base_url": stub.url,
        "judge_key_env": "JUDGE_KEY",
        "judge_retries": 0,
        **more,
    }


def question(number: int, group: str = "writing", turns: int = 2) -> dict[str, Any]:
    texts = [f"question {number}.{turn}" for turn in range(1, turns + 1)]
    return {"turns": texts, "id": f"q{number}", "group": group, "scorer": "judge"}


def answered(rows: list[dict[str, Any]]) -> list[Response]:
    """Results of a test case: each turn is answered with a text that names the query and the turn."""
    results = []
    for row in rows:
        query = row["query"]
        trace = {"chunks": ((0.1, 1),), "steps": ()}
        texts = [f"answer {query['id']}.{turn}" for turn in range(1, len(query["turns"]) + 1)]
        turns = [{"completion": text, "trace": trace} for text in texts]
        result = Response(turns=turns, scorer=query["scorer"], usage={"prompt_tokens": 1, "completion_tokens": 1})
        result.row = row
        results.append(result)
    return results


def processed(hyperparameters: dict[str, Any], questions: list[Any], answers: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DatasetProcessor(**hyperparameters)(SimpleNamespace(x=questions, y=answers)).x
    return rows


def case(stub: JudgeStub, count: int, **more: Any) -> list[Response]:
    references = {"references": ["", ""]}
    return answered(processed(settings(stub, **more), [question(i) for i in range(count)], [references] * count))


def second_turn(prompt: str) -> bool:
    """Whether a judge is asked about a second turn, with the official prompts or with ours."""
    return "Conversation with User" in prompt or "<second_reply>" in prompt


def by_turn(first: int, second: int) -> Callable[[str], str]:
    """A judge that gives one rating to first turns, another to second ones."""
    return lambda prompt: f"Rating: [[{second if second_turn(prompt) else first}]]"
