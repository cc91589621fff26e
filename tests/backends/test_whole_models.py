"""Damaged and inconsistent model folders are rejected."""

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
from ianvs_specdec.backends.prompts import TextOutput
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import ContextWindowError
from tests.support.damage import Raw, Tensors, copy_of, with_config, with_weights

BACKENDS = ("autoregressive", "huggingface")
LAYER = "model.layers.1."
UP = f"{LAYER}mlp.up_proj.weight"
Edit = Callable[[Tensors], object]


def spoilt(value: float) -> Edit:
    return lambda tensors: tensors[UP].view(-1)[-1:].fill_(value)


def without_layer(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(LAYER)]:
        del tensors[name]


WEIGHTS: dict[str, tuple[Edit, str]] = {
    "a matrix is missing": (lambda tensors: tensors.pop(UP), UP),
    "a norm is missing": (lambda tensors: tensors.pop(f"{LAYER}input_layernorm.weight"), "input_layernorm.weight"),
    "the embedding is missing": (lambda tensors: tensors.pop("model.embed_tokens.weight"), "model.embed_tokens.weight"),
    "a layer is missing": (without_layer, "and 6 more"),
    "no tensors": (lambda tensors: tensors.clear(), "no weights"),
    "another shape": (lambda tensors: tensors.update({UP: torch.zeros(48, 31)}), UP),
    "no place": (lambda tensors: tensors.update(other=torch.zeros(48)), "other"),
    "NaN": (spoilt(float("nan")), UP),
    "infinite": (spoilt(-float("inf")), UP),
}


def refused(folder: Path, told: str, name: str = "autoregressive", **options: Any) -> None:
    with pytest.raises(UserError) as caught, backend(name)(str(folder), **options) as llm:
        llm.load()
    message = str(caught.value)
    assert message.startswith(f"cannot load the model {folder}: ")
    assert told in message
    assert "\n" not in message
    assert caught.value.key == "model"


@pytest.mark.parametrize("damage", WEIGHTS)
@pytest.mark.parametrize("name", BACKENDS)
def test_weights_must_match_the_configuration(tiny_model: Path, tmp_path: Path, name: str, damage: str) -> None:
    edit, told = WEIGHTS[damage]
    refused(with_weights(tiny_model, tmp_path / "m", edit), told, name)


def test_half_precision_weights_are_checked(tiny_model: Path, tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(torch.float16)
        # Sums of these are beyond float16, the weights are not.
        tensors["model.norm.weight"].fill_(60000.0)

    folder = with_weights(tiny_model, tmp_path / "m", edit)
    with backend("autoregressive")(str(folder)) as llm:
        llm.load()
    refused(with_weights(folder, tmp_path / "n", spoilt(float("nan"))), UP)
    refused(with_weights(tiny_model, tmp_path / "o", spoilt(1e6)), UP, dtype="float16")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("num_hidden_layers", 3, "model.layers.2."),
        ("num_hidden_layers", Raw("1e999"), "num_hidden_layers"),
        ("vocab_size", 10**12, "vocab_size"),
        ("num_attention_heads", 0, "at least 1"),
        ("num_key_value_heads", 2, "k_proj.weight"),
        ("head_dim", "16", "head_dim must be a whole number"),
        ("rms_norm_eps", Raw("NaN"), "rms_norm_eps"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0.0}, "rope_theta"),
        ("num_labels", 10**9, "num_labels"),
        ("model_type", "qwen2", "k_proj.bias"),
        ("quantization_config", Raw("[" * 100_000 + "]" * 100_000), "nested too deeply"),
    ],
)
def test_invalid_configurations_are_rejected(
    tiny_model: Path, tmp_path: Path, key: str, value: object, told: str
) -> None:
    refused(with_config(tiny_model, tmp_path / "m", **{key: value}), told)


@pytest.mark.parametrize("name", BACKENDS)
def test_damaged_files_are_named(tiny_model: Path, tmp_path: Path, name: str) -> None:
    folder = copy_of(tiny_model, tmp_path / "m")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, "</s>"]}', encoding="utf-8")
    refused(folder, "eos_token_id", name)
    weights = folder / "model.safetensors"
    for size in (-100, 4):
        weights.write_bytes((tiny_model / "model.safetensors").read_bytes()[:size])
        refused(folder, f"{weights} is damaged or cut off", name)
    folder = copy_of(tiny_model, tmp_path / "m")
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=f"cannot load the tokenizer of {re.escape(str(folder))}"):
        backend(name)(str(folder)).load()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_tied_output_matrix_may_be_missing(tiny_model: Path, tmp_path: Path, name: str) -> None:
    folder = with_weights(tiny_model, tmp_path / "m", lambda tensors: tensors.pop("lm_head.weight"))
    with backend(name)(str(with_config(folder, tmp_path / "tied", tie_word_embeddings=True))) as llm:
        llm.load()
    refused(folder, "lm_head.weight", name)


def test_integer_weights_are_rejected_except_masks_of_gpt2(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = copy_of(tiny_model, tmp_path / "gpt2")
    config = GPT2Config(vocab_size=258, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    mask = {"transformer.h.0.attn.bias": torch.ones((1, 1, 8, 8), dtype=torch.bool)}
    masked = with_weights(folder, tmp_path / "m", lambda tensors: tensors.update(mask))
    with backend("autoregressive")(str(masked)) as llm:
        llm.load()
    whole = {"transformer.ln_f.bias": torch.ones(16, dtype=torch.int8)}
    refused(
        with_weights(folder, tmp_path / "n", lambda tensors: tensors.update(whole)),
        "the tensor transformer.ln_f.bias in",
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_missing_and_foreign_tokenizers_are_reported(tiny_model: Path, tmp_path: Path, name: str) -> None:
    folder = copy_of(tiny_model, tmp_path / "m")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"].append(token | {"id": 258, "content": "river"})
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with backend(name)(str(folder)) as llm:
        llm.check_files()
        llm.generate([{"role": "user", "content": "lake"}], Sampling(max_tokens=2))
        with pytest.raises(UserError, match="the tokenizer is of another model"):
            llm.generate([{"role": "user", "content": "river"}], Sampling(max_tokens=2))
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=r"has no tokenizer \(tokenizer.json or tokenizer.model\)") as caught:
        backend(name)(str(folder)).check_files()
    assert caught.value.key == "model"


def test_a_prompt_that_fills_the_window_is_a_user_error(tiny_model: Path) -> None:
    with backend("autoregressive")(str(tiny_model)) as llm:
        llm.load()
        with pytest.raises(ContextWindowError, match=str(tiny_model)):
            llm._decode([3] * 512, Sampling(max_tokens=4), TextOutput(llm.chat, Sampling(), None), [], NO_HINTS)


def test_an_internal_error_is_no_user_error(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ianvs_specdec.drafters.prompt_lookup import PromptLookup

    def fail(*_: Any) -> None:
        raise ValueError("zip() argument 2 is shorter")

    monkeypatch.setattr(PromptLookup, "propose", fail)
    with backend("PromptLookup")(str(tiny_model)) as llm, pytest.raises(ValueError, match="is shorter") as caught:
        llm.load()
    assert not isinstance(caught.value, UserError)


@pytest.mark.parametrize("threads", [0, True, 10**30])
@pytest.mark.parametrize("name", [*BACKENDS, "llamacpp"])
def test_invalid_thread_counts_are_rejected(tiny_model: Path, name: str, threads: object) -> None:
    with pytest.raises(UserError, match="threads must be a whole number from 1 to 1024") as caught:
        backend(name)(str(tiny_model), threads=threads)
    assert caught.value.key == "threads"
