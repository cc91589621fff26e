"""Public questions and any model folder by YAML edits alone: what is sent, counted and reported is right."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import ALGORITHMS, LONGEST, Workplace
from tests.support.jsonl import read_jsonl

BACKENDS = ("autoregressive", "PromptLookup")
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}</s>{% endfor %}[assistant]"


def specdec_data(*arguments: str | Path) -> Path:
    """``specdec data prepare ...``; the file it wrote."""
    command = [sys.executable, "-m", "ianvs_specdec.commands.cli", "data", "prepare", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=LONGEST, capture_output=True)
    return Path(arguments[-1])


def mt_bench(shared: Path, out: Path, limit: int) -> Path:
    source = shared / "data" / "mt_bench" / "question.jsonl"
    return specdec_data("mt_bench", "--from", source, "--scorer", "none", "--limit", str(limit), "--out", out)


def mmlu(shared: Path, out: Path, limit: int) -> Path:
    source = shared / "data" / "mmlu" / "mmlu_test.jsonl.gz"
    return specdec_data("mmlu", "--from", source, "--limit", str(limit), "--out", out)


def transcript(messages: list[tuple[str, str]]) -> str:
    """What a model without a chat template reads."""
    return "".join(f"{role.capitalize()}: {text}\n\n" for role, text in messages) + "Assistant:"


def templated(messages: list[tuple[str, str]]) -> str:
    """What TEMPLATE makes of the messages."""
    return "".join(f"[{role}] {text}</s>" for role, text in messages) + "[assistant]"


def check_rows(
    rows: list[dict[str, Any]], data: list[dict[str, Any]], folder: Path, prompt: Callable[..., str], limit: int
) -> tuple[int, int, int]:
    """Compare every turn with a count of our own; the sums of prompt and completion tokens, and of prompts that were
    cut.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    window = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    sums = [0, 0, 0]
    for row, source in zip(rows, data, strict=True):
        result = row["result"]
        question, messages = source["question"], list[tuple[str, str]]()
        assert result["query_id"] == question["id"]
        assert len(result["turns"]) == len(question["turns"])
        for text, turn in zip(question["turns"], result["turns"], strict=True):
            messages.append(("user", text))
            tokens = len(tokenizer.encode(prompt(messages), add_special_tokens=prompt is transcript))
            room = window - min(limit, window // 2)
            usage, trace, ids = turn["usage"], turn["trace"], turn["token_ids"]
            cut = tokens - room if tokens >= window else 0
            limit_here = limit if cut else min(limit, window - tokens)
            assert usage["prompt_tokens"] == tokens - cut
            assert turn.get("truncated", 0) == cut
            sums[2] += bool(cut)
            assert usage["completion_tokens"] == len(ids) == sum(n for _, n in trace["chunks"]) <= limit_here
            assert 1 + sum(emitted for _, _, emitted, _ in trace["steps"]) == len(ids)
            assert turn["finish_reason"] == ("length" if len(ids) == limit_here and ids[-1] != 2 else "stop")
            assert turn["completion"] == tokenizer.decode(ids, skip_special_tokens=True)
            times = [seconds for seconds, _ in trace["chunks"]]
            assert times[0] > 0
            assert all(a < b for a, b in itertools.pairwise(times))
            messages.append(("assistant", turn["completion"]))
            sums[0] += usage["prompt_tokens"]
            sums[1] += usage["completion_tokens"]
        last = [turn["trace"]["chunks"][-1][0] for turn in result["turns"]]
        assert result["perf"]["latency"] == pytest.approx(sum(last))
        assert result["perf"]["time_to_first_token"] == result["turns"][0]["trace"]["chunks"][0][0]
    return sums[0], sums[1], sums[2]


def check(workplace: Workplace, data: Path, limit: int, **prompts: tuple[Path, Callable[..., str]]) -> None:
    """The whole job, four routers by two back ends: each side's rows by EdgeOnly and CloudOnly, the columns of all."""
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    rows, leaderboard = read_jsonl(data), workplace.leaderboard()
    assert leaderboard.keys() == {(router, backend) for router in ALGORITHMS for backend in BACKENDS}
    assert {row["Lossless"] for row in leaderboard.values()} == {"100.0"}
    assert {row["Queries"] for row in leaderboard.values()} == {f"{len(rows)}.0"}
    for side, (folder, prompt) in prompts.items():
        router = f"{side.capitalize()}Only"
        outputs = []
        for backend in BACKENDS:
            answers, row = workplace.answers(router, backend), leaderboard[router, backend]
            sums = check_rows(answers, rows, folder, prompt, limit)
            assert float(row[f"{side.capitalize()} Prompt Tokens"]) == sums[0]
            assert float(row[f"{side.capitalize()} Completion Tokens"]) == sums[1]
            assert float(row["Truncated Prompts"]) == sums[2]
            busy = sum(answer["result"]["perf"]["latency"] for answer in answers)
            assert float(row["Throughput"]) == pytest.approx(sums[1] / busy, rel=1e-4)
            outputs.append([turn["token_ids"] for answer in answers for turn in answer["result"]["turns"]])
        assert outputs[0] == outputs[1]
        assert float(leaderboard[router, "autoregressive"]["Mean Accepted Tokens"]) == 1.0
        assert float(leaderboard[router, "PromptLookup"]["Mean Accepted Tokens"]) >= 1.0


@pytest.mark.slow
def test_a_local_model_folder_on_public_questions(workplace: Workplace, shared: Path, tmp_path: Path) -> None:
    limit, data = 16, tmp_path / "public.jsonl"
    parts = (mt_bench(shared, tmp_path / "mt.jsonl", 3), mmlu(shared, tmp_path / "mmlu.jsonl", 3))
    data.write_text("".join(part.read_text(encoding="utf-8") for part in parts), encoding="utf-8")
    plain = shared / "reference" / "target"
    chat = tmp_path / "chat"
    chat.mkdir()
    for file in plain.iterdir():
        shutil.copyfile(file, chat / file.name)
    (chat / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    workplace.data(data)
    workplace.settings("edge", model=str(plain), max_tokens=limit, truncate_prompts=True)
    workplace.settings("cloud", model=str(chat), max_tokens=limit, truncate_prompts=True)
    check(workplace, data, limit, edge=(plain, transcript), cloud=(chat, templated))
