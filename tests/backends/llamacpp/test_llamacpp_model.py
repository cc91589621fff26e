"""A GGUF file in llama.cpp: the logits of transformers, the tokens of the tokenizer it was made from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import pre_tokenizers

from ianvs_specdec.backends.llamacpp.model import GgufTokenizer, LlamaCppModel
from ianvs_specdec.backends.prompts import Chat
from ianvs_specdec.engine import TokenTree
from ianvs_specdec.models.gguf.exporting import export_gguf
from ianvs_specdec.models.gguf.vocabulary import PRE_TOKENIZERS
from tests.support.folders import CLOUD, FAMILIES, byte_level, random_model, sentencepiece, split_then_bytes
from tests.support.targets import OneSequence

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-llamacpp)")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    model = random_model(tmp_path, family)
    export_gguf(tmp_path, tmp_path / "m.gguf", "f32")
    ids = random.Random(0).choices(range(5, 1024), k=150)
    loaded = LlamaCppModel(tmp_path / "m.gguf", n_ctx=None, threads=1, gpu_layers=0)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    sequence = OneSequence(loaded)
    read = sequence.prefill(ids[:140]).logits
    verified = sequence.verify(TokenTree.chain(ids[140], ids[141:])).logits
    sequence.commit([0, 1, 2])
    again = sequence.verify(TokenTree.chain(ids[143])).logits
    # Each is still what it was when it was computed.
    # llama.cpp looks GELU up in a table of half-precision numbers.
    near = 1e-2 if "gemma" in family else 1e-4
    torch.testing.assert_close(read[0], expected[139], atol=near, rtol=1e-4)
    torch.testing.assert_close(verified, expected[140:], atol=near, rtol=1e-4)
    torch.testing.assert_close(again[0], expected[143], atol=near, rtol=1e-4)
    loaded.close()


def texts() -> list[str]:
    drawn = random.Random(1)
    alphabet = "abcXYZ  \n\t019'.,!-\u00e9\u65e5\U0001f389\u00bd\u00a0\u0301sStTlL\r_"
    fixed = [
        "",
        "Hello world",
        "  leading and trailing  ",
        "a\n\nb\n",
        "1234567 1,000.50",
        "don't I'LL we've It'S",
        "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e",
        "\U0001f389\U0001f389 \U0001f469\u200d\U0001f469\u200d\U0001f467",
        "\u00bd \u2167 \u0661\u0662\u0663",
        "<|user|>hi<|end|> <|end|>x",
        "</s> <s> t",
        "\x00\x01 control",
        "a_b-c=d;{}[]()!?...",
        "un caf\u00e9 cr\u00e8me<tool> <tool>x",
    ]
    return fixed + ["".join(drawn.choices(alphabet, k=drawn.randint(1, 30))) for _ in range(150)]


def with_added(tokenizer: Any) -> Any:
    """Two more tokens, which are no control tokens: they are part of the text."""
    tokenizer.add_tokens(["<tool>", "caf\u00e9 cr\u00e8me"])
    return tokenizer


PATTERNS = {name: rules[0].removeprefix("split ") for rules, name in PRE_TOKENIZERS.items()}
TOKENIZERS = {
    "gpt-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ),
    "llama-bpe": lambda: byte_level(split_then_bytes(PATTERNS["llama-bpe"]), ignore_merges=True),
    "qwen2": lambda: byte_level(split_then_bytes(PATTERNS["qwen2"])),
    "tekken": lambda: byte_level(split_then_bytes(PATTERNS["tekken"]), ignore_merges=True),
    "sentencepiece": lambda: sentencepiece(prefix=True),
    "sentencepiece without prefix": lambda: sentencepiece(prefix=False),
    "tokens of the user": lambda: with_added(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))),
    "embedded": lambda: transformers.AutoTokenizer.from_pretrained(CLOUD),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_vocabulary_in_the_file_tokenizes_as_the_tokenizer_did(kind: str, tmp_path: Path) -> None:
    random_model(tmp_path, eos_token_id=None)
    TOKENIZERS[kind]().save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    export_gguf(tmp_path, tmp_path / "m.gguf", "f32")
    loaded = LlamaCppModel(tmp_path / "m.gguf", n_ctx=64, threads=1, gpu_layers=0)
    own = GgufTokenizer(loaded)
    for text in texts():
        for special in (False, True):
            ids = tokenizer(text, add_special_tokens=special)["input_ids"]
            assert own(text, add_special_tokens=special)["input_ids"] == ids, repr(text)
            # Half of a character is one U+FFFD in byte-level decoders, several in SentencePiece's.
            for part in (ids, ids[:0] if "sentencepiece" in kind else ids[: len(ids) // 2]):
                assert own.decode(part, skip_special_tokens=True) == tokenizer.decode(part, skip_special_tokens=True)
    assert own.ends == {tokenizer.eos_token_id}
    loaded.close()


def test_control_tokens_that_mark_thoughts_stay_in_the_text(tmp_path: Path) -> None:
    random_model(tmp_path, eos_token_id=None)
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.save_pretrained(tmp_path)
    export_gguf(tmp_path, tmp_path / "m.gguf", "f32")
    loaded = LlamaCppModel(tmp_path / "m.gguf", n_ctx=64, threads=1, gpu_layers=0)
    for text in ("<|user|>Why<think>because</think>so<|end|>", "<|user|>plain<|end|>"):
        ids = tokenizer(text).input_ids
        own, theirs = Chat(GgufTokenizer(loaded), 64), Chat(tokenizer, 64)
        assert own.text(ids) == theirs.text(ids) == text.removeprefix("<|user|>").removesuffix("<|end|>")
        assert own.open_tag(ids[:3]) == theirs.open_tag(ids[:3])
    loaded.close()
