"""Features of further families in GGUF files: what llama.cpp is told, and what it would pass over is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.exporting import export_gguf
from tests.support.folders import change, random_model

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (extra gguf)")

NEW = ("smollm3", "phi3", "phi3 longrope", "granite", "olmo2", "gemma2", "gemma3")


@pytest.mark.parametrize("family", NEW)
def test_further_families_have_their_tensors_and_features(family: str, tmp_path: Path) -> None:
    random_model(tmp_path, family)
    export_gguf(tmp_path, tmp_path / "m.gguf", "f32")
    reader, weights = gguf.GGUFReader(tmp_path / "m.gguf"), load_file(tmp_path / "model.safetensors")
    written = {tensor.name: tensor.data for tensor in reader.tensors}
    offset = float("gemma" in family)
    np.testing.assert_array_equal(written["output_norm.weight"], weights["model.norm.weight"] + np.float32(offset))
    factors = {name for name in written if name.startswith("rope_factors")}
    assert len(written) - len(factors) == len(weights)
    name = reader.get_field("general.architecture").contents()
    stated = {key.removeprefix(f"{name}."): value.contents() for key, value in reader.fields.items()}
    expected: dict[str, dict[str, Any]] = {
        "phi3": {"rope.dimension_count": 8},
        "phi3 longrope": {"context_length": 256, "rope.scaling.original_context_length": 256},
        "granite": {"attention.scale": 0.25, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0},
        "gemma2": {"attn_logit_softcapping": 20.0, "attention.sliding_window_pattern": [True, False]},
        "gemma3": {"rope.freq_base_swa": 100.0, "rope.freq_base": 500.0, "rope.scaling.factor": 4.0},
    }
    wanted = expected.get(family, {})
    assert {key: stated[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("smollm3", "no_rope_layers", [1, 0, 1, 0, 1]),
        ("granite", "hidden_act", "gelu"),
        ("phi3", "attn_logit_softcapping", 20.0),
        ("gemma2", "query_pre_attn_scalar", 8),
        ("gemma2", "final_logit_softcapping", None),
        ("olmo2", "clip_qkv", 8.0),
        ("qwen3_moe", "norm_topk_prob", False),
        ("mixtral", "shared_expert_intermediate_size", 64),
        ("qwen3", "rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4}),
        ("llama", "new_switch", True),
    ],
)
def test_what_llama_cpp_would_pass_over_is_refused(family: str, key: str, value: Any, tmp_path: Path) -> None:
    random_model(tmp_path, family)
    change(tmp_path, "config.json", lambda data: data.update({key: value}))
    with pytest.raises(UserError, match="llama3" if key == "rope_parameters" else key):
        export_gguf(tmp_path, tmp_path / "m.gguf", "f32")


def test_experts_are_stacked_in_their_order(tmp_path: Path) -> None:
    random_model(tmp_path, "mixtral")
    export_gguf(tmp_path, tmp_path / "m.gguf", "f16")
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    weights = load_file(tmp_path / "model.safetensors")
    for name, part in (("ffn_gate", "w1"), ("ffn_down", "w2"), ("ffn_up", "w3")):
        parts = [weights[f"model.layers.1.block_sparse_moe.experts.{i}.{part}.weight"] for i in range(12)]
        np.testing.assert_array_equal(written[f"blk.1.{name}_exps.weight"].data, np.stack(parts).astype(np.float16))
    assert written["blk.1.ffn_gate_inp.weight"].tensor_type == gguf.GGMLQuantizationType.F32


def test_a_missing_expert_is_refused(tmp_path: Path) -> None:
    random_model(tmp_path, "olmoe")
    change(tmp_path, "config.json", lambda data: data.update(num_experts=13))
    with pytest.raises(UserError, match="are 12 tensors, expected 13 of one shape"):
        export_gguf(tmp_path, tmp_path / "m.gguf", "f32")
