"""Quantized models: baseline, memory, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.report.metrics import METRICS


def edge(model: Path, **hyperparameters: Any) -> EdgeModel:
    settings = {
        "model": str(model),
        "backend": "autoregressive",
        "dtype": "float32",
        "max_tokens": 24,
        **hyperparameters,
    }
    return EdgeModel(**settings)


@pytest.mark.parametrize("backend", ["autoregressive", "PromptLookup", "huggingface"])
def test_the_baseline_of_int8_is_int8(job: Path, tiny_model: Path, backend: str) -> None:
    edge(tiny_model, quantization="int8").predict("ab ab ab")
    plain = edge(tiny_model, backend=backend).predict("ab ab ab")
    small = edge(tiny_model, backend=backend, quantization="int8").predict("ab ab ab")
    assert small["turns"][0]["key"] != plain["turns"][0]["key"]
    if backend != "huggingface":  # its norms are not folded into the weights before these are rounded
        assert small["turns"][0]["baseline"]["identical"]
    memory = [METRICS["Model Memory"](["B"], [[False, answer, answer, None]]) for answer in (small, plain)]
    assert memory[0] < 0.6 * memory[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantization": "int7"}, "unknown quantization 'int7'"),
        ({"quantization": "int8", "device": "meta"}, "computed on the CPU, not on meta"),
        ({"quantization": "bitsandbytes-nf4"}, "needs the package bitsandbytes: pip install bitsandbytes"),
        ({"quantization": "awq"}, "needs the package gptqmodel"),
    ],
)
def test_unavailable_quantizations_are_rejected(
    job: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(UserError, match=message) as caught:
        edge(tiny_model, **settings).predict("ab")
    assert caught.value.key == "quantization"


def test_a_checkpoint_must_have_the_requested_format(
    job: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: object())
    with pytest.raises(UserError, match=r"quantization gptq is for checkpoints made with it; .* is not quantized"):
        edge(tiny_model, quantization="gptq").predict("ab")
    stored = shutil.copytree(tiny_model, tmp_path / "stored")
    config = json.loads((stored / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "awq"}
    (stored / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="is stored as awq"):
        edge(stored, quantization="gptq").predict("ab")
