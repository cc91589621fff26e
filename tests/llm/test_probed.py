"""A back end's answer that is held back while somebody looks at what the model thinks of the question."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from ianvs_specdec.errors import ContextWindowError, UserError  # noqa: E402
from ianvs_specdec.llm import backend  # noqa: E402
from ianvs_specdec.types import Sampling  # noqa: E402
from tests.support.models import build_model  # noqa: E402

MESSAGES = [{"role": "user", "content": "one two one two"}]
SAMPLING = Sampling(max_tokens=12)
LAYERS = (1, -1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"), window=96)


@pytest.fixture(scope="module")
def llm(model: Path):
    with backend("PromptLookup")(str(model), dtype="float32", device="cpu", threads=1) as loaded:
        yield loaded


def test_the_states_are_told_and_the_answer_is_the_usual_one(llm, model: Path) -> None:
    probed = llm.probe(MESSAGES, SAMPLING, LAYERS)
    prompt = AutoTokenizer.from_pretrained(model).apply_chat_template(MESSAGES, add_generation_prompt=True)
    ids = torch.tensor([prompt if isinstance(prompt, list) else prompt["input_ids"]])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    expected = reference(ids, output_hidden_states=True).hidden_states
    pooled = torch.stack([torch.cat((expected[i][0, -1], expected[i][0].amax(0))) for i in LAYERS])
    torch.testing.assert_close(probed.states, pooled, atol=1e-4, rtol=1e-4)
    assert llm.occupancy().sequences == 1
    answer, usual = probed.go_on(), llm.generate(MESSAGES, SAMPLING)
    assert (answer.text, answer.token_ids, answer.prompt_tokens) == (usual.text, usual.token_ids, usual.prompt_tokens)
    assert 0 < probed.seconds < answer.trace.chunks[0][0] + 1e-3


def test_a_dropped_answer_holds_nothing_when_it_is_dropped(llm) -> None:
    probed = llm.probe(MESSAGES, SAMPLING, LAYERS)
    assert probed.states.shape == (2, 64)
    probed.drop()
    assert (llm.occupancy().sequences, llm.occupancy().waiting) == (0, 0)
    assert llm.generate(MESSAGES, SAMPLING).token_ids


def test_a_prompt_that_does_not_fit_is_told_to_whoever_wants_its_states(llm) -> None:
    probed = llm.probe([{"role": "user", "content": "x" * 200}], SAMPLING, LAYERS)
    with pytest.raises(ContextWindowError):
        assert probed.states
    with pytest.raises(ContextWindowError):
        probed.go_on()


def test_back_ends_without_hidden_states_refuse(model: Path) -> None:
    with pytest.raises(UserError, match="does not tell a model's hidden states") as refused:
        backend("huggingface")(str(model)).probe(MESSAGES, SAMPLING, LAYERS)
    assert refused.value.key == "backend"
