"""What is written can be read back: metadata, tensors in GGUF's order, vocabulary. What cannot be, is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from tokenizers import pre_tokenizers

from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.exporting import export_gguf
from ianvs_specdec.models.gguf.vocabulary import BYTE, CONTROL, UNKNOWN, vocabulary
from tests.support.folders import BASE, CLOUD, EDGE, byte_level, change, random_model, sentencepiece

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (extra gguf)")


def exported(folder: Path, out: Path, kind: str = "f32") -> Any:
    export_gguf(folder, out, kind)
    return gguf.GGUFReader(out)


def field(reader: Any, key: str) -> Any:
    return reader.get_field(key).contents()


def tensors(reader: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    random_model(folder)
    return folder


def test_the_metadata_say_what_the_model_is(tmp_path: Path) -> None:
    reader = exported(CLOUD, tmp_path / "cloud.gguf", "f16")
    config = json.loads((CLOUD / "config.json").read_text())
    assert field(reader, "general.architecture") == "llama"
    expected = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        "vocab_size": config["vocab_size"],
    }
    assert {key: field(reader, f"llama.{key}") for key in expected} == expected
    assert field(reader, "llama.attention.layer_norm_rms_epsilon") == pytest.approx(config["rms_norm_eps"])


def test_query_and_key_rows_alternate_between_the_halves_of_a_head(tiny: Path, tmp_path: Path) -> None:
    weights, written = load_file(tiny / "model.safetensors"), tensors(exported(tiny, tmp_path / "m.gguf"))
    head_dim = BASE["hidden_size"] // BASE["num_attention_heads"]
    for ours, theirs, heads in (("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)):
        rows = weights[f"model.layers.1.self_attn.{ours}.weight"]
        got = written[f"blk.1.{theirs}.weight"]
        for head in range(heads):
            start = head * head_dim
            half = start + head_dim // 2
            np.testing.assert_array_equal(got[start : start + head_dim : 2], rows[start:half])
            np.testing.assert_array_equal(got[start + 1 : start + head_dim : 2], rows[half : start + head_dim])


@pytest.mark.parametrize(("kind", "error"), [("f32", 0.0), ("bf16", 0.0), ("f16", 1e-6), ("q8_0", 0.006)])
def test_bfloat16_weights_survive_as_exactly_as_the_type_allows(kind: str, error: float, tmp_path: Path) -> None:
    written, weights = tensors(exported(EDGE, tmp_path / "edge.gguf", kind)), load_torch(EDGE / "model.safetensors")
    for theirs, ours in (("token_embd", "model.embed_tokens"), ("blk.2.ffn_down", "model.layers.2.mlp.down_proj")):
        expected = weights[f"{ours}.weight"].float().numpy()
        assert np.abs(written[f"{theirs}.weight"] - expected).max() <= error * np.abs(expected).max()
    np.testing.assert_array_equal(written["output_norm.weight"], weights["model.norm.weight"].float().numpy())


def test_several_files_of_weights_are_one_model(tmp_path: Path) -> None:
    model = random_model(tmp_path / "one")
    random_model(tmp_path / "many")
    (tmp_path / "many" / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    for name in ("one", "many"):
        export_gguf(tmp_path / name, tmp_path / f"{name}.gguf", "f16")
    one, many = (tensors(gguf.GGUFReader(tmp_path / f"{name}.gguf")) for name in ("one", "many"))
    assert one.keys() == many.keys()
    assert all(np.array_equal(one[name], many[name]) for name in one)


def test_an_output_matrix_of_its_own_counts_whatever_says_tied(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    random_model(tmp_path / "both")
    change(tmp_path / "both", "config.json", lambda data: data.update(tie_word_embeddings=True))
    written = tensors(exported(tmp_path / "both", tmp_path / "both.gguf"))["output.weight"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "both").get_output_embeddings().weight
    assert np.array_equal(written, loaded.detach().numpy())


def test_tokens_types_merges_ends_and_template(tmp_path: Path) -> None:
    reader = exported(CLOUD, tmp_path / "cloud.gguf")
    data = json.loads((CLOUD / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = field(reader, "tokenizer.ggml.tokens")
    assert {token: i for i, token in enumerate(tokens)}.items() >= data["model"]["vocab"].items()
    kinds = field(reader, "tokenizer.ggml.token_type")
    assert {tokens[i] for i, kind in enumerate(kinds) if kind == CONTROL} == {
        token["content"] for token in data["added_tokens"]
    }
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    assert field(reader, "tokenizer.ggml.merges") == merges
    assert (field(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre")) == ("gpt2", "smollm")
    assert (field(reader, "tokenizer.ggml.eos_token_id"), field(reader, "tokenizer.ggml.padding_token_id")) == (1, 0)
    assert field(reader, "tokenizer.ggml.add_bos_token") is False
    assert field(reader, "tokenizer.chat_template") == (CLOUD / "chat_template.jinja").read_text(encoding="utf-8")


def test_several_tokens_end_an_answer(tmp_path: Path) -> None:
    random_model(tmp_path)
    change(tmp_path, "generation_config.json", lambda data: data.update(eos_token_id=[1, 3, 4]))
    assert vocabulary(tmp_path, {}, 1056).special == {"eos": 1, "eot": 3, "eom": 4, "padding": 0}
    change(tmp_path, "generation_config.json", lambda data: data.update(eos_token_id=[1, 2, 3, 4]))
    with pytest.raises(UserError, match="4 EOS tokens"):
        vocabulary(tmp_path, {}, 1056)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_tokens_score_by_the_merge_that_makes_them(prefix: bool, tmp_path: Path) -> None:
    random_model(tmp_path)
    sentencepiece(prefix=prefix).save_pretrained(tmp_path)
    words = vocabulary(tmp_path, {}, 1056)
    data = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    assert (words.model, words.merges, words.add_space_prefix, words.add_bos) == ("llama", [], prefix, True)
    made = ["".join(merge) for merge in data["merges"]]
    assert [words.scores[data["vocab"][token]] for token in made] == [-float(made.index(token)) for token in made]
    assert [words.types[i] for i in (0, 1, 3)] == [UNKNOWN, CONTROL, BYTE]
    assert len(words.scores) == 1056


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def edit(file: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder, file, lambda data: data.update(values))


def damage(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def quantized(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"', 1))


def whole_words(folder: Path) -> None:
    byte_level(pre_tokenizers.WhitespaceSplit()).save_pretrained(folder)


def ignoring_merges(folder: Path) -> None:
    byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ignore_merges=True).save_pretrained(folder)


def large_weights(folder: Path) -> None:
    model = random_model(folder)
    with torch.no_grad():
        model.lm_head.weight[3, 3] = 1e5
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (edit("config.json", model_type="gpt_neox"), "unknown model_type to export"),
        (edit("config.json", hidden_act="gelu"), "hidden_act 'gelu' cannot be exported"),
        (edit("config.json", num_hidden_layers=3), "lack 9 tensors, blk.2.attn_k.weight"),
        (
            edit("config.json", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4}),
            "scaling to export.*dynamic",
        ),
        (
            edit("config.json", rope_parameters={"partial_rotary_factor": 0.5, "rope_theta": 1e4}),
            "partial_rotary_factor",
        ),
        (remove("tokenizer.json"), "has no tokenizer.json"),
        (remove("model.safetensors"), "has no weights in safetensors format"),
        (damage, "model.safetensors is damaged or cut off"),
        (quantized, "has type I32.*before it was quantized"),
        (whole_words, "no tokenizer that does this before the merges: WhitespaceSplit"),
        (ignoring_merges, "bytes by words .whole words ignore merges"),
        (edit("tokenizer.json", normalizer={"type": "Lowercase"}), "no normalizer 'Lowercase'"),
        (large_weights, "lm_head.weight has weights beyond float16's range"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    spoil: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder, out = tmp_path / "m", tmp_path / "out" / "m.gguf"
    out.parent.mkdir()
    random_model(folder)
    spoil(folder)
    with pytest.raises(UserError, match=message):
        export_gguf(folder, out, "f16")
    assert list(out.parent.iterdir()) == []


def test_tokens_beyond_the_embedding_are_refused(tmp_path: Path) -> None:
    random_model(tmp_path / "m", vocab_size=1000)
    with pytest.raises(UserError, match="24 tokens, id 1000 among them, have no row"):
        export_gguf(tmp_path / "m", tmp_path / "m.gguf", "f16")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match="pip install 'gguf>="):
        export_gguf(EDGE, tmp_path / "m.gguf", "f16")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "edge.gguf"
    assert main(["export", "gguf", "--model", str(EDGE), "--out", str(out), "--type", "q8_0"]) == 0
    assert f"{out}: q8_0, {out.stat().st_size / 1e6:.1f} MB" in capsys.readouterr().err
    assert field(gguf.GGUFReader(out), "general.name") == "edge"
    for arguments, message in (
        (["--model", str(tmp_path / "no"), "--out", str(out)], "is not a folder"),
        (["--model", str(EDGE), "--out", str(tmp_path / "no" / "m.gguf")], "does not exist"),
        (["--model", str(EDGE), "--out", str(tmp_path)], "is a folder"),
        (["--model", str(EDGE), "--out", str(tmp_path / ("x" * 250))], f"{'x' * 250} cannot be written"),
    ):
        assert main(["export", "gguf", *arguments]) == 2
        assert message in capsys.readouterr().err
