"""``specdec train world`` on a tiny scale: whom the edge learns from, what is written, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from ianvs_specdec.commands import cli  # noqa: E402
from ianvs_specdec.training import corpus, lm, world  # noqa: E402
from tests.support.holding import held  # noqa: E402

PUPIL = lm.ModelRecipe(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32, steps=3, drill=0.0, rows=2, length=64)
VOCABULARY = 300


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "teacher"
    corpus.train_tokenizer(folder, vocabulary=VOCABULARY, seed=1, conversations=300)
    lm.build(PUPIL, AutoTokenizer.from_pretrained(folder), 2).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.RECIPES, "edge", PUPIL)
    monkeypatch.setattr(world, "_by_subject", lambda *_: "exact 0.00")


def train(out: Path, *more: str) -> int:
    return cli.main(["train", "world", "--out", str(out), "--only", "edge", "--threads", "1", *more])


def test_the_edge_alone_learns_from_any_cloud_model_and_speaks_its_tokens(cloud: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--cloud", str(cloud)) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "edge")
    assert (model.config.num_hidden_layers, model.config.hidden_size, model.dtype) == (2, 16, torch.bfloat16)
    assert (tmp_path / "edge" / "tokenizer.json").read_bytes() == (cloud / "tokenizer.json").read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "edge").chat_template == corpus.CHAT_TEMPLATE
    assert not (tmp_path / "cloud").exists()


def test_without_a_cloud_model_there_is_nothing_to_learn_from(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert train(tmp_path) == 2
    assert "train it first" in capsys.readouterr().err


def test_checkpoints_of_another_recipe_are_refused(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert train(tmp_path, "--cloud", str(cloud)) == 0
    monkeypatch.setitem(world.RECIPES, "edge", replace(PUPIL, hidden=32))
    assert train(tmp_path, "--cloud", str(cloud)) == 2
    assert "another training (hidden differ)" in capsys.readouterr().err
    monkeypatch.setitem(world.RECIPES, "edge", replace(PUPIL, steps=5))
    assert train(tmp_path, "--cloud", str(cloud)) == 0
    assert "resuming at step 3" in capsys.readouterr().out
    assert json.loads((tmp_path / "edge" / "config.json").read_text())["hidden_size"] == 16


def test_two_trainings_do_not_share_a_folder(cloud: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    work = tmp_path / ".training" / "edge"
    work.mkdir(parents=True)
    with held(work):
        assert train(tmp_path, "--cloud", str(cloud)) == 2
    assert "is in use by another run" in capsys.readouterr().err
    assert not (tmp_path / "edge").exists()
