"""A worker that counts what cannot be: the request fails, nothing of it is believed, and nobody waits for ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ianvs_specdec.backends.vllm.backend import VllmLLM
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Sampling


def ask(llm: VllmLLM, **sampling: Any) -> Any:
    return llm.generate([{"role": "user", "content": "hello"}], Sampling(**{"max_tokens": 20, **sampling}))


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [65, 1e999]},
        {"tokens": [10**400]},
        {"tokens": [True]},
        {"tokens": "65"},
        {"time": 1e999},
        {"time": math.nan},
        {"time": -1},
        {"drafts": [[3, 10**12]]},
        {"drafts": [[2, 3]]},
        {"drafts": [3]},
        {"finish": 3},
        {"logprobs": [[1e999, [-0.5]]]},
        {"remove": "finish"},
    ],
    ids=str,
)
def test_what_no_worker_counts_is_a_failed_request(stand_in: Callable[..., VllmLLM], change: dict[str, Any]) -> None:
    llm = stand_in(engine_args={"change": change})
    with pytest.raises(AnswerError, match="vLLM's worker returned an invalid value") as caught:
        ask(llm, logprobs=True)
    assert caught.value.failures[0][1] in ("implausible number", "broken line")


@pytest.mark.parametrize("line", ["5", "{", "[" * 9999, '{"id": 1e999}', '{"id": ' + "9" * 5000 + "}"])
def test_a_line_that_is_none_lets_nobody_wait(stand_in: Callable[..., VllmLLM], line: str) -> None:
    llm = stand_in(engine_args={"line": line})
    with pytest.raises(UserError, match="the vLLM process wrote an invalid answer"):
        ask(llm)


@pytest.mark.parametrize("ready", [{"max_model_len": 1e999}, {"memory": -5}])
def test_a_worker_that_says_nonsense_of_itself(stand_in: Callable[..., VllmLLM], ready: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="the vLLM process does not report that it is ready"):
        stand_in(engine_args={"ready": ready}).load()
