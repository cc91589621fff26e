"""Training on a tiny scale: it learns, grows without losing its place, and goes on where it was stopped."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

from ianvs_specdec.training import corpus, lm  # noqa: E402

TINY = lm.ModelRecipe(
    hidden=32,
    layers=4,
    heads=2,
    kv_heads=1,
    intermediate=64,
    minutes=0.05,
    start_layers=2,
    grow_at=0.4,
    rows=2,
    length=128,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    corpus.train_tokenizer(folder, vocabulary=400, seed=1, conversations=400)
    return AutoTokenizer.from_pretrained(folder)


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "Größe 1234 — 漢字 🙂\n\ttabs"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_the_chat_template_writes_what_training_reads(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "q2"},
    ]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt + "a2" + corpus.END == corpus.chat(("q1", "q2"), ("a1", "a2"))


def test_batches_depend_on_seed_and_step_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    first, second = (corpus.Batches(tokenizer, rows=4, length=256, seed=9) for _ in range(2))
    first.batch(0)
    assert torch.equal(first.batch(5)[0], second.batch(5)[0])
    assert not torch.equal(first.batch(5)[0], first.batch(6)[0])


def test_the_loss_counts_answers_fully_and_prompts_little(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens, weights = corpus.Batches(tokenizer, rows=4, length=256, seed=9).batch(0)
    row, weight = tokens[0].tolist(), weights[0].tolist()
    speaking = False
    for token, value in zip(tokenizer.convert_ids_to_tokens(row), weight, strict=True):
        if token == corpus.PAD:
            assert value == 0
        elif speaking:
            assert value in (1.0, corpus.LAST_WORD_WEIGHT)
        else:
            assert value == pytest.approx(corpus.PROMPT_WEIGHT)
        speaking = (speaking or token == corpus.ASSISTANT) and token != corpus.END


def test_growing_stacks_copies(tokenizer: PreTrainedTokenizerFast) -> None:
    shallow = lm.build(TINY, tokenizer, 2)
    deep = lm.grow(shallow, TINY, tokenizer)
    for index, layer in enumerate(deep.model.layers):
        for ours, theirs in zip(layer.parameters(), shallow.model.layers[index % 2].parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_training_learns_grows_and_resumes(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokens, weights = corpus.Batches(tokenizer, rows=4, length=128, seed=77).batch(0)
    with torch.no_grad():
        before = lm.loss_of(lm.build(TINY, tokenizer, 4), tokens, weights)
    lines: list[str] = []
    model = lm.train(TINY, tokenizer, tmp_path, device="cpu", report=lines.append)
    with torch.no_grad():
        assert lm.loss_of(model, tokens, weights) < before
    assert any("growing from 2 to 4" in line for line in lines)
    lines.clear()
    again = lm.train(TINY, tokenizer, tmp_path, device="cpu", report=lines.append)
    assert lines[0].startswith("resuming at step")
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
