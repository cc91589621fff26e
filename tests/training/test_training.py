"""Training on a tiny scale: it learns, grows without losing its place, and goes on where it was stopped."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

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


from transformers import AutoModelForCausalLM  # noqa: E402

from ianvs_specdec.commands import cli  # noqa: E402
from ianvs_specdec.training import lm, world  # noqa: E402
from tests.support.locked_folder import locked_folder  # noqa: E402

SMALL = lm.ModelRecipe(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32, steps=3, drill=0.0, rows=2, length=64)
VOCABULARY = 300


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "teacher"
    corpus.train_tokenizer(folder, vocabulary=VOCABULARY, seed=1, conversations=300)
    lm.build(SMALL, AutoTokenizer.from_pretrained(folder), 2).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.RECIPES, "edge", SMALL)
    monkeypatch.setattr(world, "_by_subject", lambda *_: "exact 0.00")


def train_world(out: Path, *more: str) -> int:
    return cli.main(["train", "world", "--out", str(out), "--only", "edge", "--threads", "1", *more])


def test_the_edge_alone_learns_from_any_cloud_model_and_speaks_its_tokens(cloud: Path, tmp_path: Path) -> None:
    assert train_world(tmp_path, "--cloud", str(cloud)) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "edge")
    assert (model.config.num_hidden_layers, model.config.hidden_size, model.dtype) == (2, 16, torch.bfloat16)
    assert (tmp_path / "edge" / "tokenizer.json").read_bytes() == (cloud / "tokenizer.json").read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "edge").chat_template == corpus.CHAT_TEMPLATE
    assert not (tmp_path / "cloud").exists()


def test_without_a_cloud_model_there_is_nothing_to_learn_from(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert train_world(tmp_path) == 2
    assert "train it first" in capsys.readouterr().err


def test_checkpoints_of_another_recipe_are_refused(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert train_world(tmp_path, "--cloud", str(cloud)) == 0
    monkeypatch.setitem(world.RECIPES, "edge", replace(SMALL, hidden=32))
    assert train_world(tmp_path, "--cloud", str(cloud)) == 2
    assert "another training (hidden differ)" in capsys.readouterr().err
    monkeypatch.setitem(world.RECIPES, "edge", replace(SMALL, steps=5))
    assert train_world(tmp_path, "--cloud", str(cloud)) == 0
    assert "resuming at step 3" in capsys.readouterr().out
    assert json.loads((tmp_path / "edge" / "config.json").read_text())["hidden_size"] == 16


def test_two_trainings_do_not_share_a_folder(cloud: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    work = tmp_path / ".training" / "edge"
    work.mkdir(parents=True)
    with locked_folder(work):
        assert train_world(tmp_path, "--cloud", str(cloud)) == 2
    assert "is in use by another run" in capsys.readouterr().err
    assert not (tmp_path / "edge").exists()
