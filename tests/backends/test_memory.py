"""Model Memory: what lies in memory, each weight once, and of heads their packed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ianvs_specdec.backends import backend
from ianvs_specdec.targets.linear import Linear
from ianvs_specdec.targets.native import library
from tests.support.damage import with_config, with_weights
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"

needs_native = pytest.mark.skipif(library.unavailable_reason() is not None, reason="the native step was not built")


def memory(name: str, model: Path, **options: Any) -> int:
    with backend(name)(str(model), **options) as llm:
        llm.load()
        found = llm.memory()
    assert found is not None
    return found


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def size(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.fixture
def tied(tiny_model: Path, tmp_path: Path) -> Path:
    folder = with_weights(tiny_model, tmp_path / "untied", lambda tensors: tensors.pop("lm_head.weight"))
    return with_config(folder, tmp_path / "tied", tie_word_embeddings=True)


@pytest.mark.slow
def test_tied_embeddings_are_held_once(tiny_model: Path, tied: Path) -> None:
    embedding = stored(tied)["model.embed_tokens.weight"]
    for name, engine in (("autoregressive", {"engine": "torch"}), ("huggingface", {})):
        assert memory(name, tiny_model, **engine) - memory(name, tied, **engine) == size([embedding]), name
    assert memory("huggingface", tied) == pytest.approx(size([*stored(tied).values()]), rel=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_copies_count_and_what_they_replace_does_not(tiny_model: Path, dtype: str) -> None:
    whole = size([tensor.to(getattr(torch, dtype)) for tensor in stored(tiny_model).values()])
    packs = Linear(torch.zeros(64, 64, dtype=getattr(torch, dtype)))._packed is not None
    copied = {"float32": 2.0 if packs else 1.0, "bfloat16": 1.0}[dtype]
    embedding = stored(tiny_model)["model.embed_tokens.weight"].numel() * getattr(torch, dtype).itemsize
    expected = embedding + copied * (whole - embedding)
    assert memory("autoregressive", tiny_model, dtype=dtype, engine="torch") == pytest.approx(expected, rel=0.02)


@needs_native
@pytest.mark.parametrize(("quantization", "share"), [("none", 1.0), ("int8", 1.0625 / 2), ("int4", 0.5625 / 2)])
def test_packed_weights_count_as_large_as_they_are(quantization: str, share: float) -> None:
    # A group of 32 integers has a scale of 16 bits. The output embedding keeps 8 bits where the others have 4.
    tensors = stored(MODELS / "edge")
    embeddings = [tensors["model.embed_tokens.weight"]]
    head = tensors.get("lm_head.weight", embeddings[0])
    products = [t for name, t in tensors.items() if t.dim() == 2 and "embed" not in name and "lm_head" not in name]
    packed = share * size(products) + max(share, 1.0625 / 2) * size([head])
    found = memory("autoregressive", MODELS / "edge", quantization=quantization, engine="native")
    assert found == pytest.approx(size(embeddings) + packed, rel=0.06)


@pytest.mark.parametrize(
    ("name", "model", "options"),
    [
        ("EagleSpecDec", "edge", {"head": "edge-eagle"}),
        pytest.param("MedusaSpecDec", "cloud", {"head": "cloud-medusa"}, marks=pytest.mark.slow),
        pytest.param("DraftModelSpecDec", "cloud", {"draft": "edge"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("engine", ["torch", pytest.param("native", marks=needs_native)])
def test_what_drafts_counts_as_it_lies_in_memory(name: str, model: str, options: dict[str, str], engine: str) -> None:
    plain = memory("autoregressive", MODELS / model, engine=engine)
    files_of = {key: str(MODELS / value) for key, value in options.items()}
    drafting = memory(name, MODELS / model, engine=engine, **files_of)
    if name == "DraftModelSpecDec":
        assert drafting - plain == memory("autoregressive", MODELS / "edge")
        return
    files = [*(MODELS / options["head"]).glob("*.safetensors"), *(MODELS / options["head"]).glob("*.pt")]
    on_disk = sum(file.stat().st_size for file in files)
    # The target's output matrix, which a head may read in another layout, comes on top; nothing is held twice.
    assert 0.95 < (drafting - plain) / on_disk < 2
