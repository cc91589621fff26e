"""Heads of other formats, and with flags of other computations, are computed as they say or refused by that name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.targets.registry import create_target
from tests.support.damage import copy_of, with_config, with_weights
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"
CLOUD, EAGLE3 = MODELS / "cloud", MODELS / "cloud-eagle3"
IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def target() -> Any:
    return create_target(transformers.AutoModelForCausalLM.from_pretrained(CLOUD, dtype=torch.float32))


def refused_everywhere(target: Any, head: Path, *told: str) -> None:
    """At the check, which the host calls, and where a head is loaded."""
    with pytest.raises(UserError) as checked:
        EdgeModel.check_hyperparameters({"model": str(CLOUD), "backend": "EagleSpecDec", "head": str(head)})
    with pytest.raises(UserError) as loaded:
        drafters.create("eagle", {"head": head}).prepare(target)
    for error in (checked.value, loaded.value):
        assert error.key == "head"
        assert all(text in str(error) for text in told), error


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([99, 5, 9], "no layer 99"),
        ([1, 5], "2 in eagle_aux"),
        ("1,5,9", "a list of layers"),
    ],
)
def test_layers_that_are_not_there_are_named(target: Any, tmp_path: Path, ids: Any, told: str) -> None:
    head = with_config(EAGLE3, tmp_path / "head", eagle_config={IDS: ids})
    refused_everywhere(target, head, IDS, told)


SPECULATORS = {"speculators_model_type": "eagle3", "norm_before_residual": True}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"fc_norm": True}, "lacks the tensor fc_norm.0.weight, expected [256] in an EAGLE-3 head with fc_norm"),
        ({"norm_before_fc": True}, "lacks the tensor input_norm.weight"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm exclude each other"),
        ({"parallel_drafting": True}, "parallel_drafting"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window is missing"),
        ({"layer_types": ["chunked_attention"]}, "layer_types is ['chunked_attention']"),
        ({"use_sliding_window": True, "sliding_window": 128}, "use_sliding_window needs layer_types"),
        ({"mlp_bias": True}, "mlp.gate_proj.bias"),
        ({"model_type": "qwen3"}, "self_attn.q_norm.weight"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm is True"),
        ({"eagle_config": {"parallel_draft_step": 2}}, "parallel_draft_step is 2"),
        ({"norm_output": "false"}, "norm_output is 'false'"),
        ({"norm_before_fc": None, "eagle_config": {"norm_before_fc": True}}, "lacks the tensor input_norm.weight"),
        (
            {"norm_output": False, "eagle_config": {"norm_output": True}},
            "norm_output is False and in eagle_config",
        ),
        ({"residual_multiplier": 0.2}, "residual_multiplier is 0.2"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"hidden_act": "gelu"}, "hidden_act silu"),
        (SPECULATORS, "must state transformer_layer_config and norm_before_residual"),
        ({"speculators_model_type": "dflash"}, "a speculators head of type dflash, and EagleSpecDec does not read it"),
        ({"architectures": ["PEagleDraftModel"]}, "a P-EAGLE head, and EagleSpecDec does not read it: no back end"),
        ({"model_type": "medusa"}, "a Medusa head, and EagleSpecDec does not read it: use MedusaSpecDec"),
    ],
)
def test_a_flag_of_another_computation_is_named(target: Any, tmp_path: Path, values: dict[str, Any], told: str) -> None:
    refused_everywhere(target, with_config(EAGLE3, tmp_path / "head", **values), told)


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_output"])
def test_a_flag_of_eagle3_is_refused_in_the_first_eagle(target: Any, tmp_path: Path, flag: str) -> None:
    first = with_config(MODELS / "cloud-eagle", tmp_path / "first", **{flag: True})
    refused_everywhere(target, first, f"{flag} is for EAGLE-3")


def as_speculators(folder: Path, **layer: Any) -> Path:
    """The shipped EAGLE-3 head in the format of ``speculators``, with other values of its layer."""

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("midlayer.")]:
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    with_weights(EAGLE3, folder, rename)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    top = {"draft_vocab_size": config.pop("draft_vocab_size"), **SPECULATORS, "norm_before_residual": False}
    written = {**top, "transformer_layer_config": {**config, **layer}}
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def test_faults_of_a_head_of_speculators_are_told(target: Any, tmp_path: Path) -> None:
    for values, told in (
        ({"vocab_size": 2048}, "lacks the tensor d2t"),
        ({"hidden_size": 128}, "has shape"),
        ({"model_type": "deepseek_v3"}, "model_type is 'deepseek_v3'"),
        ({"hidden_size": None}, "hidden_size is missing"),
    ):
        refused_everywhere(target, as_speculators(tmp_path / "head", **values), told)
    cut = as_speculators(tmp_path / "head") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    refused_everywhere(target, tmp_path / "head", "model.safetensors")
    with_weights(as_speculators(tmp_path / "sound"), tmp_path / "head", lambda t: t["fc.weight"].fill_(torch.nan))
    with pytest.raises(UserError, match=r"fc\.weight.*NaN"):
        drafters.create("eagle", {"head": tmp_path / "head"}).prepare(target)


@pytest.mark.parametrize(
    ("ids", "files", "told"),
    [
        ([5, 99999], 1, "a list of different token ids below 1024"),
        (torch.arange(4), 1, "a list of different token ids"),
        ([1, 2], 2, "keep one of them"),
    ],
)
def test_a_wrong_draft_vocabulary_of_fr_spec_is_told(
    target: Any, tmp_path: Path, ids: Any, files: int, told: str
) -> None:
    head = copy_of(MODELS / "cloud-eagle", tmp_path / "head")
    for number in range(files):
        torch.save(ids, head / f"freq_{number}.pt")
    refused_everywhere(target, head, "freq_0.pt", told)


MODELOPT = {
    **dict.fromkeys(("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"), True),
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": None,
}
"""What ModelOpt's export writes."""


QWEN2 = {
    "model_type": "qwen2",
    "qkv_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "layer_types": ["sliding_attention"],
}


@pytest.mark.parametrize("values", [{}, QWEN2])
def test_flags_that_ask_for_nothing_are_fine(tmp_path: Path, values: dict[str, Any]) -> None:
    nothing: dict[str, Any] = {
        **dict.fromkeys(("norm_before_residual", "parallel_drafting", "attention_bias", "mlp_bias"), False),
        **dict.fromkeys(("fc_norm", "norm_before_fc", "quantization_config", "mask_token_id"), None),
        "use_cache": True,
        "partial_rotary_factor": 1.0,
        "layer_types": ["full_attention"] * 4,
        "sliding_window": 4096,
        "eagle_config": {IDS: [], **MODELOPT},
        "norm_output": None,
        **values,
    }
    head = with_config(EAGLE3, tmp_path / "head", **nothing)
    EdgeModel.check_hyperparameters({"model": str(CLOUD), "backend": "EagleSpecDec", "head": str(head)})


@pytest.mark.parametrize("name", ["fc_norm.weight", "midlayer.input_norm.weight"])
def test_tensors_that_no_flag_asks_for_are_named(target: Any, tmp_path: Path, name: str) -> None:
    head = with_weights(EAGLE3, tmp_path / "head", lambda tensors: tensors.update({name: torch.ones(256)}))
    refused_everywhere(target, head, name, "no place in an EAGLE-3 head")
