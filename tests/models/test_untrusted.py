"""Untrusted model folders: absurd numbers, remote code, pickles; concurrent loads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models import loading
from ianvs_specdec.models.numbers import check_numbers
from tests.support.paths import ROOT
from tests.support.tiny import tiny_model


@pytest.mark.parametrize(
    "config",
    [
        # As in DeepSeek models.
        {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}},
        {"rope_parameters": {"rope_type": "yarn", "mscale_all_dim": 1.0, "rope_theta": 1e6}},
    ],
)
def test_numbers_of_real_families_are_valid(config: dict[str, Any]) -> None:
    check_numbers(Path("config.json"), config, {})


@pytest.mark.parametrize("value", [-1, 1.5, 10**12])
def test_sizes_are_whole_and_bounded(value: float) -> None:
    with pytest.raises(UserError, match="head_dim"):
        check_numbers(Path("config.json"), {"head_dim": value}, {})


def test_concurrently_loaded_models_are_complete(tmp_path: Path) -> None:
    kinds = {"tied": (True, torch.float32), "half": (False, torch.bfloat16)}
    for name, (tied, dtype) in kinds.items():
        tiny_model(tie_word_embeddings=tied).to(dtype).save_pretrained(tmp_path / name)

    def loaded(name: str) -> tuple[bool, torch.dtype]:
        model = loading.load(loading.CAUSAL, tmp_path / name, what=name, dtype="auto")
        return model.lm_head.weight is model.model.embed_tokens.weight, model.dtype

    names = [*kinds] * 5
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(loaded, names)) == [kinds[name] for name in names]


def test_pickled_weights_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the check of the folder is bypassed."""
    model = tiny_model()
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(loading, "check_model", lambda *_, **__: None)
    with pytest.raises(UserError, match=r"cannot load the model: .*safetensors"):
        loading.load(loading.CAUSAL, tmp_path, what="the model")


REQUIRED = {
    "from_pretrained": ("trust_remote_code", False),
    "SentenceTransformer": ("trust_remote_code", False),
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
}
"""Call -> required argument and its value."""
OTHERS = ("GenerationConfig", "Embedding", "EaModel")
"""Classes whose ``from_pretrained`` runs no remote code, or does not have this argument."""
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "host").rglob("*.py")])


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, bool | None]]:
    """Calls with a required argument: node, argument name and actual value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        callee = ast.unparse(node.func)
        owner, _, last = callee.rpartition(".")
        required = REQUIRED.get(callee) or REQUIRED.get(last)
        if required is None or owner.rpartition(".")[2] in OTHERS:
            continue
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        value = arguments.get(required[0])
        yield node, required[0], value.value if isinstance(value, ast.Constant) else None


def test_every_call_that_may_run_remote_code_forbids_it() -> None:
    found, wrong = 0, []
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        # Parsing all files takes seconds.
        for node, name, value in calls(ast.parse(text if any(call in text for call in REQUIRED) else "")):
            found += 1
            if value is not dict(REQUIRED.values())[name]:
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {name} is {value}")
    assert not wrong
    assert found > 15
