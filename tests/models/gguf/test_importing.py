"""A GGUF file becomes a folder with the same weights, tokens and chat template. What cannot be read is refused."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Regex, pre_tokenizers

from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.configuration import configuration
from ianvs_specdec.models.gguf.exporting import export_gguf
from ianvs_specdec.models.gguf.importing import import_gguf
from ianvs_specdec.models.gguf.vocabulary import IGNORE_MERGES, PRE_TOKENIZERS
from ianvs_specdec.models.rotary import window_of
from tests.support.folders import EDGE, FAMILIES, TEXTS, byte_level, random_model, sentencepiece

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (extra gguf)")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "edge.gguf"
    export_gguf(EDGE, path, "f32")
    return path


def convert(model: Path, out: Path, kind: str = "float32") -> int:
    return main(["export", "hf", "--model", str(model), "--out", str(out), "--type", kind])


@pytest.mark.parametrize("rules", PRE_TOKENIZERS, ids=PRE_TOKENIZERS.values())
def test_texts_are_split_by_the_rules_that_the_file_names(rules: tuple[str, ...], tmp_path: Path) -> None:
    built = {
        "bytes by words": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        "single digits": pre_tokenizers.Digits(individual_digits=True),
    }
    steps = [
        built[rule] if rule in built else pre_tokenizers.Split(Regex(rule.removeprefix("split ")), "isolated")
        for rule in rules
    ]
    whole_words = PRE_TOKENIZERS[rules] in IGNORE_MERGES
    same_tokens(byte_level(pre_tokenizers.Sequence(steps), ignore_merges=whole_words), tmp_path)


def test_sentencepiece(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same_tokens(sentencepiece(prefix=True), tmp_path)
    other = tmp_path / "other"
    assert convert(exported(sentencepiece(prefix=False), other), other / "back") == 2
    assert "puts no space before a text, cannot be imported: use backend llamacpp" in capsys.readouterr().err


def exported(tokenizer: Any, folder: Path) -> Path:
    """A GGUF file of a small model with this tokenizer."""
    (folder / "there").mkdir(parents=True)
    random_model(folder / "there", tie_word_embeddings=True)
    tokenizer.save_pretrained(folder / "there")
    export_gguf(folder / "there", folder / "file.gguf", "f32")
    return folder / "file.gguf"


def same_tokens(tokenizer: Any, folder: Path) -> None:
    assert convert(exported(tokenizer, folder), folder / "back") == 0
    back = transformers.AutoTokenizer.from_pretrained(folder / "back")
    for text in (*TEXTS, "<|user|>12345<|end|> x", "1 234"):
        ids = tokenizer(text).input_ids
        assert back(text).input_ids == ids
        assert back.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("values", [8.0, [1.0] * 7 + [3.0], [1.0] * 7])
def test_factors_of_positions_that_are_not_llama3s(values: Any, tmp_path: Path) -> None:
    metadata, names = stated("llama3 scaling", tmp_path)
    factors = np.float32(values) * np.ones(8 if isinstance(values, float) else len(values), dtype=np.float32)
    with pytest.raises(UserError, match=r"rope_freqs.weight\) cannot be imported: use backend llamacpp"):
        configuration(metadata, names, {"rope_freqs.weight": factors})


def test_nothing_is_replaced(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(file, tmp_path) == 2
    assert "give a folder that does not exist yet" in capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES)
def test_every_exported_family_computes_the_same_logits(family: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "there", family)
    export_gguf(tmp_path / "there", tmp_path / "file.gguf", "f32")
    import_gguf(tmp_path / "file.gguf", tmp_path / "back", "float32")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    ids = torch.tensor([random.Random(0).choices(range(5, 1024), k=100)])
    with torch.no_grad():
        expected, got = (one(ids).logits for one in (model, back))
    # Weights whose norms have an offset were rounded once more.
    torch.testing.assert_close(got, expected, atol=1e-3 if "gemma" in family else 0.0, rtol=0.0)
    window = 256 if family == "phi3 longrope" else window_of(model.config)
    assert window_of(back.config) == window


def stated(family: str, folder: Path, **settings: Any) -> tuple[dict[str, Any], set[str]]:
    """All metadata of an exported file, and the names of its tensors."""
    random_model(folder, family, **settings)
    export_gguf(folder, folder / "file.gguf", "f32")
    reader = gguf.GGUFReader(folder / "file.gguf")
    return {key: field.contents() for key, field in reader.fields.items()}, {one.name for one in reader.tensors}


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("qwen2", "qwen2.expert_count", 8),
        ("mixtral", "llama.expert_weights_scale", 2.5),
        ("olmoe", "olmoe.expert_feed_forward_length", 8),
        ("granite", "granite.rope.scaling.finetuned", False),
        ("llama", "llama.rope.scaling.type", "longrope"),
        ("llama", "llama.feed_forward_length", [96, 64]),
        ("yarn", "llama.rope.scaling.attn_factor", 2.0),
        ("qwen2", "qwen2.attention.sliding_window", 24),
        ("gemma3", "gemma3.attn_logit_softcapping", 20.0),
        ("llama", "general.architecture", "mamba"),
    ],
)
def test_metadata_that_are_not_read_are_refused_by_name(family: str, key: str, value: Any, tmp_path: Path) -> None:
    metadata, names = stated(family, tmp_path)
    configuration(metadata, names)
    with pytest.raises(UserError, match=re.escape(key.removeprefix("llama."))):
        configuration({**metadata, key: value}, names)


@pytest.mark.parametrize(
    ("family", "settings", "metadata", "expected"),
    [
        ("phi3", {}, {"attention.sliding_window": 24}, {"sliding_window": 24}),
        ("qwen3_moe", {}, {"expert_feed_forward_length": 0}, {"moe_intermediate_size": 48}),
        ("phi3", {}, {"attention.sliding_window": 0}, {"sliding_window": None}),
        ("gemma2", {"num_hidden_layers": 46, "query_pre_attn_scalar": 16}, {}, {"query_pre_attn_scalar": 16}),
        (
            "gemma3",
            {},
            {"attention.sliding_window_pattern": 2},
            {"layer_types": ["sliding_attention", "full_attention"]},
        ),
        ("llama", {}, {"tensor_data_layout": "Meta AI original pth"}, {"model_type": "llama"}),
    ],
)
def test_metadata_of_published_files(
    family: str, settings: dict[str, Any], metadata: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    found, names = stated(family, tmp_path, **settings)
    name = found["general.architecture"]
    config = configuration({**found, **{f"{name}.{key}": value for key, value in metadata.items()}}, names)
    assert {key: config[key] for key in expected} == expected


def test_a_published_longrope_model_has_its_whole_window(tmp_path: Path) -> None:
    metadata, names = stated("phi3 longrope", tmp_path)
    factors = {f"rope_factors_{kind}.weight": np.float32([1.1] * 4 + [3.3] * 4) for kind in ("long", "short")}
    config = configuration({**metadata, "phi3.context_length": 512}, names, factors)
    assert config["max_position_embeddings"] == 512
    rope = config["rope_parameters"]
    assert (rope["original_max_position_embeddings"], rope["long_factor"]) == (256, [1.1] * 4 + [3.3] * 4)
    assert rope["attention_factor"] == pytest.approx(1.0606602)
    short = {name: values[:7] for name, values in factors.items()}
    with pytest.raises(UserError, match=r"rope_factors_long.weight of another length"):
        configuration(metadata, names, short)


def test_control_tokens_whose_names_say_so_end_an_answer(tmp_path: Path) -> None:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|im_start|>"]})
    tokenizer.add_tokens(["<|eom_id|>"])
    import_gguf(exported(tokenizer, tmp_path), tmp_path / "back")
    ends = transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(tmp_path / "back"))
    assert ends.eos_token_id == tokenizer.convert_tokens_to_ids(["<|end|>", "<|im_end|>"])
