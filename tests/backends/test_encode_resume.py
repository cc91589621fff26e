"""Hidden states of prompts, and answers resumed after their first tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from ianvs_specdec.backends import backend  # noqa: E402
from ianvs_specdec.common.errors import ContextWindowError, UserError  # noqa: E402
from ianvs_specdec.common.types import Sampling  # noqa: E402
from tests.support.models import build_model  # noqa: E402

MESSAGES = [{"role": "user", "content": "one two one two"}]
LONG = [{"role": "user", "content": "x" * 200}]
SAMPLING = Sampling(max_tokens=12, logprobs=True)
LAYERS = (1, -1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"), window=96)


@pytest.fixture(scope="module")
def llm(model: Path):
    with backend("PromptLookup")(str(model), dtype="float32", device="cpu", threads=1) as loaded:
        yield loaded


def test_hidden_states_are_those_of_the_prompt(llm, model: Path) -> None:
    prompt = AutoTokenizer.from_pretrained(model).apply_chat_template(MESSAGES, add_generation_prompt=True)
    ids = torch.tensor([prompt if isinstance(prompt, list) else prompt["input_ids"]])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    expected = reference(ids, output_hidden_states=True).hidden_states
    pooled = torch.stack([torch.cat((expected[i][0, -1], expected[i][0].amax(0))) for i in LAYERS])
    found = llm.encode(MESSAGES, SAMPLING, LAYERS)
    assert found.states.dtype == np.float16
    np.testing.assert_allclose(found.states, pooled.detach().numpy(), atol=2e-3, rtol=2e-3)
    assert found.prompt_tokens == ids.shape[1] == llm.generate(MESSAGES, SAMPLING).prompt_tokens
    assert found.seconds > 0
    assert (llm.occupancy().sequences, llm.occupancy().waiting) == (0, 0)


def test_a_prompt_beyond_the_window_is_rejected(llm) -> None:
    with pytest.raises(ContextWindowError):
        llm.encode(LONG, SAMPLING, LAYERS)
    # One token is left for the answer, or none.
    assert llm.generate((5,) * 95, SAMPLING).completion_tokens == 1
    with pytest.raises(ContextWindowError, match="the prompt has 96 tokens and leaves no room"):
        llm.generate((5,) * 96, SAMPLING)


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.7}], ids=["greedy", "penalty"])
def test_a_resumed_answer_is_that_of_one_request(llm, settings: dict) -> None:
    sampling = Sampling(max_tokens=12, logprobs=True, **settings)
    usual = llm.generate(MESSAGES, sampling)
    for tokens in (1, 5, 11):
        begun = llm.begin(MESSAGES, sampling, tokens)
        assert begun.token_ids == usual.token_ids[:tokens]
        whole = llm.resume(MESSAGES, sampling, begun.token_ids)
        assert (whole.text, whole.token_ids, whole.finish_reason) == (usual.text, usual.token_ids, usual.finish_reason)
        assert whole.trace.characters == usual.trace.characters
        assert (whole.prompt_tokens, whole.trace.tokens) == (usual.prompt_tokens + tokens, 12 - tokens)


@pytest.mark.slow
def test_truncation_is_the_same_when_resumed(model: Path) -> None:
    with backend("autoregressive")(str(model), dtype="float32", threads=1, truncate_prompts=True) as llm:
        usual, begun = llm.generate(LONG, SAMPLING), llm.begin(LONG, SAMPLING, 3)
        assert begun.truncated == usual.truncated > 0
        assert llm.resume(LONG, SAMPLING, begun.token_ids).token_ids == usual.token_ids


@pytest.mark.slow
def test_unsupported_back_ends_are_rejected(model: Path) -> None:
    other = backend("huggingface")(str(model))
    with pytest.raises(UserError, match="does not return hidden states") as refused:
        other.encode(MESSAGES, SAMPLING, LAYERS)
    assert refused.value.key == "backend"
    for ask in (lambda: other.begin(MESSAGES, SAMPLING, 3), lambda: other.resume(MESSAGES, SAMPLING, [1])):
        with pytest.raises(UserError, match="does not continue an answer") as refused:
            ask()
        assert refused.value.key == "backend"
