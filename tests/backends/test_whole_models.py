"""A model answers only if its folder holds all of what its config.json claims, and nothing of another model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.base import NO_HINTS
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import ContextWindowError
from tests.support.damage import Raw, Tensors, copy_of, with_config, with_weights

BACKENDS = ("autoregressive", "huggingface")
LAYER = "model.layers.1."
MATRICES = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
DROPPED = [
    *(f"{LAYER}{name}.weight" for name in (*MATRICES, "input_layernorm", "post_attention_layernorm")),
    *("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"),
]


@pytest.fixture(scope="module")
def gpt2(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another family, with the tokenizer of the tiny one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = copy_of(tiny_model, tmp_path_factory.mktemp("gpt2") / "model")
    config = GPT2Config(vocab_size=258, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def refused(folder: Path, told: str, name: str = "autoregressive") -> None:
    with pytest.raises(UserError) as caught, backend(name)(str(folder)) as llm:
        llm.load()
    message = str(caught.value)
    assert message.startswith(f"cannot load the model {folder}: ")
    assert told in message
    assert "\n" not in message
    assert caught.value.key == "model"


@pytest.mark.parametrize("tensor", DROPPED)
def test_a_model_without_one_of_its_tensors_is_refused(tiny_model: Path, tmp_path: Path, tensor: str) -> None:
    refused(with_weights(tiny_model, tmp_path / "m", lambda tensors: tensors.pop(tensor)), tensor)


def test_the_first_tensors_that_are_missing_are_named_and_the_others_counted(tiny_model: Path, tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(LAYER)]:
            del tensors[name]

    refused(with_weights(tiny_model, tmp_path / "m", edit), f"{LAYER}mlp.down_proj.weight")
    refused(tmp_path / "m", "and 6 more")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_folder_without_a_tokenizer_is_found_before_the_model_is_loaded(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    folder = copy_of(tiny_model, tmp_path / "model")
    backend(name)(str(folder)).check_files()
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=r"has no tokenizer \(tokenizer.json or tokenizer.model\)") as caught:
        backend(name)(str(folder)).check_files()
    assert caught.value.key == "model"


def test_weights_without_tensors_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    refused(with_weights(tiny_model, tmp_path / "m", lambda tensors: tensors.clear()), "no weights")


def _spoilt(value: float) -> Callable[[Tensors], object]:
    def edit(tensors: Tensors) -> None:
        tensors[f"{LAYER}mlp.up_proj.weight"].view(-1)[-1] = value

    return edit


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused(tiny_model: Path, tmp_path: Path, name: str, value: float) -> None:
    refused(with_weights(tiny_model, tmp_path / "m", _spoilt(value)), f"{LAYER}mlp.up_proj.weight", name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_looked_at_too(tiny_model: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    def edit(tensors: Tensors) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(dtype)
        # Sums of these are beyond float16, the weights are not.
        tensors["model.norm.weight"].fill_(60000.0)

    folder = with_weights(tiny_model, tmp_path / "m", edit)
    with backend("autoregressive")(str(folder)) as llm:
        llm.load()
    refused(with_weights(folder, tmp_path / "n", _spoilt(float("nan"))), f"{LAYER}mlp.up_proj.weight")


def test_weights_that_are_beyond_the_type_they_are_wanted_in_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = with_weights(tiny_model, tmp_path / "m", _spoilt(1e6))
    with (
        pytest.raises(UserError, match=re.escape(f"{LAYER}mlp.up_proj.weight")),
        backend("autoregressive")(str(folder), dtype="float16") as llm,
    ):
        llm.load()


@pytest.mark.parametrize("shape", [(1, 32), (48, 31), (32, 48), (48 * 32,)])
def test_a_tensor_of_another_shape_is_refused(tiny_model: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
    name = f"{LAYER}mlp.up_proj.weight"
    refused(with_weights(tiny_model, tmp_path / "m", lambda tensors: tensors.update({name: torch.zeros(shape)})), name)


@pytest.mark.parametrize(
    "extra", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "other"]
)
def test_a_tensor_that_the_model_has_no_place_for_is_refused(tiny_model: Path, tmp_path: Path, extra: str) -> None:
    refused(with_weights(tiny_model, tmp_path / "m", lambda tensors: tensors.update({extra: torch.zeros(48)})), extra)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("num_hidden_layers", 1, "model.layers.1."),
        ("num_hidden_layers", 3, "model.layers.2."),
        ("num_hidden_layers", 10**9, "num_hidden_layers"),
        ("num_hidden_layers", Raw("1e999"), "num_hidden_layers"),
        ("vocab_size", 10**12, "vocab_size"),
        ("vocab_size", 259, "[259, 32]"),
        ("hidden_size", -32, "hidden_size"),
        ("num_attention_heads", 0, "at least 1"),
        ("num_key_value_heads", 10**9, "num_key_value_heads"),
        ("num_key_value_heads", 2, "k_proj.weight"),
        ("head_dim", 15, "even number"),
        ("head_dim", "16", "head_dim must be a whole number"),
        ("max_position_embeddings", 0, "max_position_embeddings"),
        ("rms_norm_eps", Raw("NaN"), "rms_norm_eps"),
        ("rms_norm_eps", -1.0, "rms_norm_eps"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0.0}, "rope_theta"),
        ("num_labels", 10**9, "num_labels"),
        ("attention_bias", True, "q_proj.bias"),
        ("model_type", "qwen2", "k_proj.bias"),
        ("quantization_config", Raw("[" * 100_000 + "]" * 100_000), "nested too deeply"),
    ],
)
def test_a_configuration_that_is_not_the_weights_own_is_refused(
    tiny_model: Path, tmp_path: Path, key: str, value: object, told: str
) -> None:
    refused(with_config(tiny_model, tmp_path / "m", **{key: value}), told)


def test_a_file_that_was_cut_off_is_named(tiny_model: Path, tmp_path: Path) -> None:
    folder = copy_of(tiny_model, tmp_path / "m")
    weights = folder / "model.safetensors"
    for size in (-100, 200, 4, 0):
        weights.write_bytes((tiny_model / "model.safetensors").read_bytes()[:size])
        refused(folder, f"{weights} is damaged or cut off")


def test_an_output_matrix_that_is_the_embedding_is_not_missed(tiny_model: Path, tmp_path: Path) -> None:
    folder = with_weights(tiny_model, tmp_path / "m", lambda tensors: tensors.pop("lm_head.weight"))
    tied = with_config(folder, tmp_path / "tied", tie_word_embeddings=True)
    for name in BACKENDS:
        with backend(name)(str(tied)) as llm:
            llm.load()


def test_a_prompt_that_fills_the_window_is_the_users_error(tiny_model: Path) -> None:
    with backend("autoregressive")(str(tiny_model)) as llm:
        llm.load()
        with pytest.raises(ContextWindowError, match=str(tiny_model)):
            llm._decode([3] * 512, Sampling(max_tokens=4), None, None, [], NO_HINTS)


@pytest.mark.parametrize("fault", [ValueError("zip() argument 2 is shorter"), KeyError("x"), IndexError("y")])
def test_a_fault_of_ours_is_not_told_as_the_users(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    from ianvs_specdec.drafters.prompt_lookup import PromptLookup

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(PromptLookup, "propose", fail)
    with backend("PromptLookup")(str(tiny_model)) as llm, pytest.raises(type(fault)) as caught:
        llm.load()
    assert not isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"eos_token_id": "</s>"}', "eos_token_id"),
        ('{"eos_token_id": [2, "</s>"]}', "eos_token_id"),
        ('{"eos_token_id": -1}', "eos_token_id"),
    ],
)
def test_what_ends_an_answer_is_known_or_the_model_refused(
    tiny_model: Path, tmp_path: Path, text: str, told: str
) -> None:
    folder = copy_of(tiny_model, tmp_path / "m")
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    for name in BACKENDS:
        refused(folder, told, name)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_tokenizer_of_another_model_is_told(tiny_model: Path, tmp_path: Path, name: str) -> None:
    folder = copy_of(tiny_model, tmp_path / "m")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["added_tokens"].append(
        dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        | {"id": 258, "content": "river"}
    )
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with backend(name)(str(folder)) as llm:
        llm.generate([{"role": "user", "content": "lake"}], Sampling(max_tokens=2))
        with pytest.raises(UserError, match="the tokenizer is of another model"):
            llm.generate([{"role": "user", "content": "river"}], Sampling(max_tokens=2))


def test_a_damaged_tokenizer_is_named(tiny_model: Path, tmp_path: Path) -> None:
    folder = copy_of(tiny_model, tmp_path / "m")
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=f"cannot load the tokenizer of {re.escape(str(folder))}"):
        backend("autoregressive")(str(folder)).load()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool])
@pytest.mark.parametrize("tensor", ["transformer.h.0.mlp.c_fc.weight", "transformer.ln_f.bias"])
def test_whole_numbers_are_no_weights_of_any_family(
    gpt2: Path, tmp_path: Path, tensor: str, dtype: torch.dtype
) -> None:
    def edit(tensors: Tensors) -> None:
        tensors[tensor] = tensors[tensor].to(dtype)

    refused(with_weights(gpt2, tmp_path / "m", edit), f"the tensor {tensor} in")


def test_the_masks_of_older_files_of_gpt2_are_no_weights(gpt2: Path, tmp_path: Path) -> None:
    mask = {"transformer.h.0.attn.bias": torch.ones((1, 1, 8, 8), dtype=torch.bool)}
    folder = with_weights(gpt2, tmp_path / "m", lambda tensors: tensors.update(mask))
    with backend("autoregressive")(str(folder)) as llm:
        llm.load()


@pytest.mark.parametrize("threads", [0, True, "2", 1.5, 10**5, 10**30])
@pytest.mark.parametrize("name", [*BACKENDS, "llamacpp"])
def test_numbers_of_threads_that_would_end_the_process_are_refused(
    tiny_model: Path, name: str, threads: object
) -> None:
    with pytest.raises(UserError, match="threads must be a whole number from 1 to 1024") as caught:
        backend(name)(str(tiny_model), threads=threads)
    assert caught.value.key == "threads"
