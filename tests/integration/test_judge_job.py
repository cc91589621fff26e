"""Jobs with a judge or with programs in the answers, and their replay."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.counting_api import CountingAPI
from tests.support.harness import Workplace
from tests.support.judge_stub import JudgeStub, judging

KEY = "sk-judge-0123456789-not-for-anybody"


@pytest.fixture
def judge() -> Iterator[JudgeStub]:
    with judging() as stub:
        yield stub


def rows() -> list[dict[str, Any]]:
    """Three questions of MT-Bench's kind, as its converter writes them."""

    def row(number: int, group: str, references: list[str]) -> dict[str, Any]:
        turns = [f"Question {number}", f"And then {number}"]
        question = {"turns": turns, "id": str(number), "group": group, "scorer": "judge"}
        return {"question": question, "answer": {"references": references}}

    return [row(81, "writing", []), row(111, "math", ["one", "two"]), row(151, "humanities", [])]


def prepare(
    workplace: Workplace, router: str, data: list[dict[str, Any]] | Path | None = None, **hyperparameters: Any
) -> None:
    """One router; ``data`` to answer; hyperparameters of the dataset processor."""
    workplace.algorithms(router)
    workplace.data(rows() if data is None else data)
    grid = [{name: {"values": [value]}} for name, value in hyperparameters.items()]
    lines = "".join(f"        - {json.dumps(item)}\n" for item in grid)
    for path in workplace.routing.glob("*_*.yaml"):
        text = path.read_text(encoding="utf-8")
        before, url, after = text.partition('query-routing/data_processor.py"\n')
        if url and grid:
            path.write_text(f"{before}{url}      hyperparameters:\n{lines}{after}", encoding="utf-8")


def settings(judge: JudgeStub) -> dict[str, Any]:
    return {"judge_model": "gpt-4", "judge_base_url": judge.url, "judge_key_env": "JUDGE_KEY", "judge_retries": 0}


def accuracy(workplace: Workplace) -> str:
    (row,) = workplace.leaderboard().values()
    assert float(row["Throughput"]) > 0, "the speed columns do not depend on the judge"
    return row["Accuracy"]


def judgments(workplace: Workplace) -> list[dict[str, Any]]:
    return [line for line in workplace.journal() if line["side"] == "judge"]


def by_turn(prompt: str) -> str:
    second = "<second_reply>" in prompt or "Conversation with User" in prompt
    return "Rating: [[9]]" if second else "Rating: [[4]]"


@pytest.mark.slow
def test_answers_are_judged_once(workplace: Workplace, judge: JudgeStub, models: tuple[Path, Path]) -> None:
    judge.judgment = by_turn
    workplace.backends("autoregressive")
    for side, model in zip(("edge", "cloud"), models, strict=True):
        workplace.settings(side, model=str(model), max_tokens=4)
    prepare(workplace, "EdgeOnly", **settings(judge))
    first = workplace.ianvs(JUDGE_KEY=KEY)
    assert first.code == 0, first.output
    assert accuracy(workplace) == "6.5"
    assert len(judge.bodies) == len(judgments(workplace)) == 6
    assert sum("<model_solution>\none\n" in prompt for prompt in judge.prompts()) == 1
    assert set(judge.keys) == {f"Bearer {KEY}"}
    again = workplace.ianvs(JUDGE_KEY=KEY)
    assert again.code == 0, again.output
    assert accuracy(workplace) == "6.5"
    assert len(judge.bodies) == 6
    files = [path for path in workplace.root.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in first.output + again.output


@pytest.mark.slow
def test_the_oracle_asks_the_judge(workplace: Workplace, judge: JudgeStub, api: CountingAPI) -> None:
    def judgment(prompt: str) -> str:
        edge = any(ask.prompt in prompt for ask in api.asked if ask.model == "edge-model")
        return f"Rating: [[{3 if edge else 8}]]"

    judge.judgment = judgment
    workplace.on_api(api.url)
    prepare(workplace, "OracleRouter", **settings(judge))
    outcome = workplace.ianvs(JUDGE_KEY=KEY)
    assert outcome.code == 0, outcome.output
    assert float(accuracy(workplace)) == 8
    assert float(workplace.leaderboard()["OracleRouter", "api"]["Edge Ratio"]) == 0
    assert len(judge.bodies) == 12, "the answers of both models, each turn once"


@pytest.mark.slow
def test_an_invalid_rating_leaves_the_score_empty(workplace: Workplace, judge: JudgeStub, api: CountingAPI) -> None:
    judge.judgment = lambda prompt: "I am flattered."
    workplace.on_api(api.url)
    prepare(workplace, "EdgeOnly", **settings(judge))
    outcome = workplace.ianvs(JUDGE_KEY=KEY)
    assert outcome.code == 1
    (line,) = outcome.lines("failed: metrics Accuracy, Accuracy CI95: ")
    assert "no answer has a rating: 6 judgments of the judge gpt-4 are missing" in line
    assert "'I am flattered.'" in line
    assert "Traceback" not in outcome.output
    assert accuracy(workplace) == ""
    assert len(judge.bodies) == 6
    judge.judgment = lambda prompt: "Rating: [[6]]"
    asked = len(api.asked)
    assert workplace.ianvs(JUDGE_KEY=KEY).code == 0
    assert (float(accuracy(workplace)), len(judge.bodies), len(api.asked)) == (6.0, 12, asked)


@pytest.mark.slow
def test_mt_bench_job(
    workplace: Workplace, judge: JudgeStub, api: CountingAPI, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared / "data" / "mt_bench"
    data = workplace.root / "mt_bench.jsonl"
    references = folder / "reference_answer" / "gpt-4.jsonl"
    command = ["data", "prepare", "mt_bench", "--from", folder / "question.jsonl", "--references", references]
    assert main([*map(str, command), "--out", str(data)]) == 0
    judge.judgment = by_turn
    workplace.on_api(api.url)
    prompts = folder / "judge_prompts.jsonl"
    assert f'judge_prompts: {{values: ["{prompts.resolve()}"]}}' in capsys.readouterr().out
    prepare(workplace, "EdgeOnly", data, **settings(judge), judge_prompts=str(prompts))
    outcome = workplace.ianvs(JUDGE_KEY=KEY)
    assert outcome.code == 0, outcome.output
    assert float(accuracy(workplace)) == 6.5
    assert {line["prompts"] for line in judgments(workplace)} == {"MT-Bench official (FastChat)"}
    assert len(api.asked) == len(judge.bodies) == len(judgments(workplace)) == 160
    assert sum("reference answer" in str(body["messages"]) for body in judge.bodies) == 60


def test_programs_in_answers_are_run_with_permission(workplace: Workplace, judge: JudgeStub) -> None:
    def row(number: int) -> dict[str, Any]:
        prompt = f'def f{number}(n: int) -> int:\n    """The double of n."""\n'
        answer = {"prompt": prompt, "entry_point": f"f{number}", "test": "def check(f):\n    assert f(2) == 4\n"}
        return {"question": {"turns": [prompt], "scorer": "code"}, "answer": answer}

    judge.judgment = lambda prompt: f"```python\n{prompt}    return {3 if 'f1(' in prompt else 2} * n\n```"
    workplace.on_api(judge.url)
    prepare(workplace, "EdgeOnly", [row(number) for number in range(4)])
    forbidden = workplace.ianvs()
    assert forbidden.code == 0, forbidden.output
    assert forbidden.lines("programs are run only with run_code: true")
    assert accuracy(workplace) == ""
    prepare(workplace, "EdgeOnly", [row(number) for number in range(4)], run_code=True)
    permitted = workplace.ianvs()
    assert permitted.code == 0, permitted.output
    assert len(permitted.lines("run_code: programs")) == 1
    with (workplace.workspace / "rank" / "all_rank.csv").open(encoding="utf-8", newline="") as file:
        assert sorted(row["Accuracy"] for row in csv.DictReader(file)) == ["", "75.0"]
    assert len(judge.bodies) == 4, "the answers are those of the first run"
