"""What a check says of model folders that cannot be loaded as they are, or not without more."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models import validation
from ianvs_specdec.plugin.models import EdgeModel
from tests.support.damage import copy_of, with_config, with_weights
from tests.support.paths import EXAMPLE

EDGE = EXAMPLE / "models" / "edge"
UP = "model.layers.0.mlp.up_proj"


def check(folder: Path, backend: str = "autoregressive") -> None:
    EdgeModel.check_hyperparameters({"model": str(folder), "backend": backend})


def refused(folder: Path, *told: str, backend: str = "autoregressive") -> None:
    with pytest.raises(UserError) as caught:
        check(folder, backend)
    assert caught.value.key == "model"
    assert all(text in str(caught.value) for text in told), caught.value


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "compressed-tensors"}, "compressed_tensors"),
        ({"quant_method": "gptq", "bits": 4}, "optimum gptqmodel"),
        ({"quant_method": "fp8"}, "accelerate"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "nonsense"}, "unknown quant_method"),
    ],
)
def test_quantized_weights_name_what_loads_them(
    tmp_path: Path, config: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_config(EDGE, tmp_path / "m", quantization_config=config)
    monkeypatch.setattr(validation.importlib.util, "find_spec", lambda name: None)
    for backend in ("autoregressive", "huggingface"):
        refused(folder, told, backend=backend)


@pytest.mark.parametrize("scale", [None, "weight_scale", "SCB"])
def test_whole_numbers_need_their_scales(tmp_path: Path, scale: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{UP}.weight"] = torch.ones(384, 128, dtype=torch.int8)
        if scale is not None:
            tensors[f"{UP}.{scale}"] = torch.ones(384, 1)

    config: dict[str, Any] = {"quantization_config": {"quant_method": "compressed-tensors"}}
    folder = with_config(with_weights(EDGE, tmp_path / "w", edit), tmp_path / "m", **config)
    monkeypatch.setattr(validation.importlib.util, "find_spec", lambda name: name)
    if scale is None:
        refused(folder, f"{UP}.weight", "I8", "and has no scale")
    else:
        check(folder)


def test_a_tokenizer_names_the_package_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of(EDGE, tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    monkeypatch.setattr(validation.importlib.util, "find_spec", lambda name: None)
    for content, package in ((b"\n\x0e\n\x05<unk>", "sentencepiece"), (b"IQ== 0\n", "tiktoken")):
        (folder / "tokenizer.model").write_bytes(content)
        refused(folder, "tokenizer.model", f"pip install {package}")
    monkeypatch.setattr(validation.importlib.util, "find_spec", lambda name: name)
    check(folder)


def test_a_folder_of_pickled_weights_tells_what_to_do(tmp_path: Path) -> None:
    folder = copy_of(EDGE, tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model-00001-of-00001.bin")
    refused(folder, "pickled weights", "docs/backends.md")


def test_a_missing_chat_template_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = copy_of(EDGE, tmp_path / "m")
    caplog.set_level(logging.WARNING)
    check(folder)
    assert not caplog.records
    (folder / "chat_template.jinja").unlink()
    for _ in range(2):
        check(folder)
    (record,) = caplog.records
    assert "has no chat template" in record.getMessage()
