"""Thoughts are told from answers, counted apart and never scored, however a template and a model mark them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from ianvs_specdec.backends.local import LocalLLM
from ianvs_specdec.backends.prompts import Chat
from ianvs_specdec.backends.specdec import EngineLLM
from ianvs_specdec.benchmarks.extraction import extract_choice
from ianvs_specdec.common.types import Trace
from ianvs_specdec.report.metrics import METRICS
from tests.support.edge import Start, edge
from tests.support.folders import byte_level
from tests.support.models import build_model

QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENS = QWEN3.replace("{% if enable", "{% if not enable_thinking is defined %}<think>\n{% endif %}{% if enable")
THOUGHT, ANSWER = "It may be C. The answer is C.\n", "The answer is B."
DONE = f"{THOUGHT}</think>\n\n{ANSWER}"
ROWS = [{"query": {"turns": [f"Which, {n}?\nA. x\nB. y\nC. z\nAnswer:"]}, "gold": "B", "index": n} for n in range(3)]


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the model says where the prompt lets it think, by ``thinking``, and where not, by ``quiet``: a token for
    each byte, the first after 1 s, and each further one 1 s later."""
    said = {"quiet": ANSWER}

    def decode(self: LocalLLM, prompt_ids: list[int], *_: Any) -> tuple[list[int], str, Trace]:
        assert self._chat is not None
        quiet = self._chat.text(prompt_ids).endswith("</think>\n\n")
        ids = self._chat.ids(said["quiet" if quiet else "thinking"])
        return ids, "stop", Trace(chunks=[(float(second), 1) for second in range(1, len(ids) + 1)])

    monkeypatch.setattr(EngineLLM, "_decode", decode)
    return said


def columns(results: list[Any], *names: str) -> list[float]:
    y_true, y_pred = [row["gold"] for row in ROWS], [[False, result, result, None] for result in results]
    return [METRICS[name](y_true, y_pred) for name in names]


@pytest.mark.parametrize(("template", "mark"), [(QWEN3, "<think>\n"), (OPENS, "")])
def test_thinking_on_and_off_in_one_job(
    template: str, mark: str, job: Path, tmp_path: Path, says: dict[str, str], new_run: Start
) -> None:
    model = build_model(tmp_path / "m", chat_template=template, window=1024)
    says["thinking"] = mark + DONE
    figures = {}
    for thinking in (True, False):
        new_run()
        kwargs = {} if thinking else {"chat_template_kwargs": {"enable_thinking": False}}
        with_thoughts = edge(model, **kwargs)
        results = [with_thoughts.predict(row) for row in ROWS]
        names = ("Accuracy", "Thinking Tokens", "Edge Completion Tokens", "Time to First Token", "TTFT Answer")
        figures[thinking] = columns(results, *names)
    thoughts = len(mark + DONE) - len(ANSWER)
    assert figures[True] == pytest.approx([100, 3 * thoughts, 3 * len(mark + DONE), 1, thoughts + 1], abs=0.5)
    assert figures[False] == pytest.approx([100, 0, 3 * len(ANSWER), 1, 1], abs=0.5)


def test_unfinished_thought_is_no_answer(job: Path, tmp_path: Path, says: dict[str, str]) -> None:
    model = build_model(tmp_path / "m", chat_template=OPENS, window=1024)
    says["thinking"] = "The answer is B. Or"
    results = [edge(model).predict(row) for row in ROWS]
    accuracy, thinking, ttft = columns(results, "Accuracy", "Thinking Tokens", "TTFT Answer")
    assert (accuracy, thinking) == (0, 3 * len(says["thinking"]))
    assert math.isnan(ttft)


def test_log_probabilities_stay_with_their_characters(job: Path, tmp_path: Path, says: dict[str, str]) -> None:
    model = build_model(tmp_path / "m", chat_template=OPENS, window=1024)
    says["thinking"] = DONE
    turn = edge(model, logprobs=True).predict(ROWS[0])["turns"][0]
    assert turn["completion"] == f"<think>{DONE}"
    assert sum(turn["trace"]["characters"]) == len(turn["completion"])


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (("<think>", "</think>"), "<think>The answer is C.</think>The answer is B."),
        (
            ("<|channel|>", "<|message|>", "<|end|>", "<|start|>"),
            "<|channel|>analysis<|message|>The answer is C.<|end|><|start|>assistant<|channel|>final<|message|>"
            "The answer is B.",
        ),
    ],
)
def test_marks_may_be_special_tokens(tokens: tuple[str, ...], said: str) -> None:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens, "<|return|>"]})
    chat = Chat(tokenizer, None)
    text = chat.text(chat.ids(f"{said}<|return|>"))
    assert text == said
    assert extract_choice(text) == "B"


def test_ends_of_turns_are_not_shown() -> None:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>", "<think>"]})
    chat = Chat(tokenizer, None)
    assert chat.text(chat.ids("The answer is B.<|end|>")) == "The answer is B."
