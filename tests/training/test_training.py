"""Training on a tiny scale: it learns, grows without losing its place, and goes on where it was stopped."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

from ianvs_specdec.benchmarks.world import facts  # noqa: E402
from ianvs_specdec.training import corpus, course, lm  # noqa: E402

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

PUPIL = replace(TINY, layers=2, start_layers=0, grow_at=0.0, drill=0.0, minutes=0.0, steps=6, length=64)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    corpus.train_tokenizer(folder, vocabulary=400, seed=1, conversations=400)
    return AutoTokenizer.from_pretrained(folder)


def test_the_chat_template_writes_what_training_reads(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "q2"},
    ]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt + "a2" + corpus.END == corpus.chat(("q1", "q2"), ("a1", "a2"))


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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def teacher(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(5)
    model = lm.build(TINY, tokenizer, 2)
    torch.nn.init.normal_(model.lm_head.weight, std=0.3)
    return model.eval()


def test_a_pupil_learns_the_teachers_distributions_and_not_the_tokens(
    tokenizer: PreTrainedTokenizerFast, teacher: LlamaForCausalLM, tmp_path: Path
) -> None:
    unseen = corpus.Batches(tokenizer, rows=2, length=64, seed=lm.VALIDATION_SEED)
    assert lm.validation_loss(teacher, unseen, teacher, "cpu") == pytest.approx(0, abs=1e-2)
    start = lm.validation_loss(lm.build(PUPIL, tokenizer, 2), unseen, teacher, "cpu")
    taught = lm.train(PUPIL, tokenizer, tmp_path / "taught", device="cpu", teacher=teacher)
    assert lm.validation_loss(taught, unseen, teacher, "cpu") < 0.97 * start
    alone = lm.train(PUPIL, tokenizer, tmp_path / "alone", device="cpu")
    assert lm.validation_loss(alone, unseen, teacher, "cpu") > start
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_steep_tail_hardly_speaks_of_what_is_rare(tokenizer: PreTrainedTokenizerFast) -> None:
    kind = facts.build().kinds["creature"]
    relation = kind.relations[0]

    def mentions(tail: float) -> list[float]:
        stream = corpus.examples(random.Random(0), drilling=False, tail=tail)
        text = "".join(itertools.islice(stream, 6000))
        told = [relation.says.format(s=name, o=kind.facts[name, relation.name]).rstrip(".") for name in kind.names]
        return [sum(map(text.count, part)) for part in (told[:8], told[-8:])]

    even, steep = mentions(1.0), mentions(3.0)
    assert steep[0] > even[0]
    assert steep[1] < even[1] / 3
    batches = [corpus.Batches(tokenizer, rows=2, length=64, seed=1, tail=tail).batch(0)[0] for tail in (1.0, 3.0)]
    assert not torch.equal(*batches)


def test_a_loss_stands_still_when_the_newest_are_hardly_below_all_before() -> None:
    falling = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    assert not course.stands_still(falling[: course.WINDOW])
    assert not course.stands_still(falling)
    still = [1.0] + [1.0 - course.LEAST_GAIN / 2] * course.WINDOW
    assert course.stands_still(still)
    assert not course.stands_still([*still[:-1], 1.0 - 2 * course.LEAST_GAIN])


def test_what_is_left_after_a_standstill_is_the_decay(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "MEASURED_EVERY", 1)
    monkeypatch.setattr(lm, "validation_loss", lambda *_: 1.0)
    rates: list[float] = []

    def noted(used, highest: float, progress: float, decay: float) -> None:
        set_rate(used, highest, progress, decay)
        rates.append(used[0].param_groups[0]["lr"])

    set_rate = course.set_rate
    monkeypatch.setattr(course, "set_rate", noted)
    lines: list[str] = []
    lm.train(replace(PUPIL, steps=1000, decay=0.5), tokenizer, tmp_path, device="cpu", report=lines.append)
    # It can be told at the fifth measurement, which is half of all then: ten steps, the later half ever slower.
    assert len(rates) == 2 * (course.WINDOW + 1)
    decay = rates[course.WINDOW + 1 :]
    assert decay == sorted(decay, reverse=True)
    assert decay[-1] < decay[0] / 2
    assert any("stands still" in line for line in lines)


def test_a_stopped_training_goes_on_as_if_nothing_had_happened(
    tokenizer: PreTrainedTokenizerFast, teacher: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "MEASURED_EVERY", 2)
    recipe = replace(PUPIL, steps=4)
    whole = lm.train(recipe, tokenizer, tmp_path / "whole", device="cpu", teacher=teacher)
    monkeypatch.setattr(course, "CHECKPOINT_SECONDS", 0.0)

    def stops(_: LlamaForCausalLM) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lm.train(recipe, tokenizer, tmp_path / "parts", device="cpu", teacher=teacher, evaluate=stops)
    lines: list[str] = []
    parts = lm.train(recipe, tokenizer, tmp_path / "parts", device="cpu", teacher=teacher, report=lines.append)
    assert lines[0].startswith("resuming at step 2")
    for ours, theirs in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    states = [course.saved(tmp_path / name, "cpu")["state"] for name in ("whole", "parts")]  # type: ignore[index]
    assert states[0]["validation"] == states[1]["validation"]
