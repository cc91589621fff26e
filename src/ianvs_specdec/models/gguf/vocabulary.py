"""A tokenizer.json as GGUF's vocabulary: tokens with their types, merges, special tokens, chat template.

llama.cpp knows tokenizers by name, not by their rules: ``PRE_TOKENIZERS`` says which name stands for which rules. A
tokenizer with other rules is refused rather than exported to one that splits texts in another way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.models.templates import read_template

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""GGUF's token types."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS: dict[tuple[str, ...], str] = {
    ("bytes by words",): "gpt-2",
    ("single digits", "bytes by words"): "smollm",
    (f"split {_WORDS}\\p{{N}}{{1,3}}{_REST}", "bytes"): "llama-bpe",
    (f"split {_WORDS}\\p{{N}}{_REST}", "bytes"): "qwen2",
    (f"split {_CASED}", "bytes"): "tekken",
}
"""Steps before the merges, in order -> ``tokenizer.ggml.pre``."""
IGNORE_MERGES = frozenset({"llama-bpe", "tekken"})


@dataclass
class Vocabulary:
    """``model`` is ``gpt2`` (byte-level BPE) or ``llama`` (SentencePiece's BPE, with ``scores`` in place of merges).

    ``special`` maps the names of GGUF's keys (``bos``, ``eos``, ``eot``, ``eom``, ``padding``, ``unknown``) to ids.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    special: dict[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    chat_template: str = ""


def vocabulary(folder: Path, config: Mapping[str, Any], rows: int) -> Vocabulary:
    """The vocabulary of a folder, padded to the ``rows`` of its embedding. Raises UserError where llama.cpp would
    tokenize differently.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"the folder {folder} has no tokenizer.json: only fast tokenizers can be exported")
    data = read_object(path)
    model = data.get("model") or {}
    if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{path}: a tokenizer of type {model.get('type')!r} cannot be exported, only BPE")
    settings = _optional(folder / "tokenizer_config.json")
    made = _sentencepiece(data, path) if model.get("byte_fallback") else _byte_level(data, path)
    made.tokens, made.types = _tokens(data, made, rows, path)
    made.scores = [*made.scores, *[-1e9] * (rows - len(made.scores))] if made.scores else []
    made.special = _special(folder, config, settings, made.tokens)
    made.add_bos, made.add_eos = _additions(path, settings, made.special)
    made.chat_template = read_template(folder)
    return made


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _byte_level(data: Mapping[str, Any], path: Path) -> Vocabulary:
    # llama.cpp does not normalize; for text that is in NFC already, as nearly all is, that changes nothing.
    if data.get("normalizer") and data["normalizer"].get("type") != "NFC":
        raise UserError(
            f"{path}: llama.cpp has no normalizer {data['normalizer'].get('type')!r}: it cannot be exported"
        )
    rules = _rules(data.get("pre_tokenizer"))
    pre = PRE_TOKENIZERS.get(tuple(rules))
    ignores = bool(data["model"].get("ignore_merges"))
    if pre is None or ignores != (pre in IGNORE_MERGES):
        described = ", then ".join(rules) or "nothing"
        raise UserError(
            f"{path}: llama.cpp has no tokenizer that does this before the merges: {described}"
            f"{' (whole words ignore merges)' if ignores else ''}; such a model cannot be exported"
        )
    return Vocabulary("gpt2", pre, [], [], merges=[" ".join(pair) for pair in _merges(data, path)])


def _rules(step: Mapping[str, Any] | None) -> list[str]:
    """The steps of a pre-tokenizer, as named in ``PRE_TOKENIZERS``."""
    if step is None:
        return []
    kind = step.get("type")
    if kind == "Sequence":
        return [rule for part in step.get("pretokenizers", ()) for rule in _rules(part)]
    if kind == "Digits" and step.get("individual_digits"):
        return ["single digits"]
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return ["bytes by words" if step.get("use_regex", True) else "bytes"]
    if kind == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
        return [f"split {(step.get('pattern') or {}).get('Regex', '')}"]
    return [f"{kind} with { ({key: value for key, value in step.items() if key != 'type'}) }"]


def _sentencepiece(data: Mapping[str, Any], path: Path) -> Vocabulary:
    """SentencePiece's BPE merges what scores best, so each token scores by the first merge that makes it."""
    text = str(data.get("normalizer")) + str(data.get("pre_tokenizer"))
    if "\u2581" not in text or (data["model"].get("continuing_subword_prefix") or ""):
        raise UserError(f"{path}: a tokenizer with byte fallback and without SentencePiece's spaces cannot be exported")
    prepended = "'Prepend'" in text or "'prepend_scheme': 'first'" in text or "'prepend_scheme': 'always'" in text
    ids: dict[str, int] = data["model"]["vocab"]
    scores = [-float(len(ids))] * (max(ids.values()) + 1)
    for rank, (left, right) in reversed(list(enumerate(_merges(data, path)))):
        if left + right in ids:
            scores[ids[left + right]] = -float(rank)
    return Vocabulary("llama", "default", [], [], scores=scores, add_space_prefix=prepended)


def _merges(data: Mapping[str, Any], path: Path) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in data["model"].get("merges", ()):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2 or any(" " in part for part in parts):
            raise UserError(
                f"{path}: the merge {merge!r} is not a pair of tokens without spaces: it cannot be exported"
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def _tokens(data: Mapping[str, Any], made: Vocabulary, rows: int, path: Path) -> tuple[list[str], list[int]]:
    model = data["model"]
    known: dict[int, tuple[str, int]] = {}
    for text, number in model["vocab"].items():
        byte = made.model == "llama" and re.fullmatch(r"<0x[0-9A-F]{2}>", text)
        unknown = made.model == "llama" and text == model.get("unk_token")
        known[number] = (text, BYTE if byte else UNKNOWN if unknown else NORMAL)
    for token in data.get("added_tokens", ()):
        if known.get(token["id"], ("", NORMAL))[1] != UNKNOWN:
            known[token["id"]] = (token["content"], CONTROL if token.get("special") else USER_DEFINED)
    if beyond := [number for number in known if not 0 <= number < rows]:
        raise UserError(
            f"{path}: {len(beyond)} tokens, id {min(beyond)} among them, have no row in the model's embedding of {rows}"
        )
    # Embeddings are padded to round numbers; GGUF wants a name for each row.
    tokens = [known.get(number, (f"[PAD{number}]", UNUSED)) for number in range(rows)]
    return [text for text, _ in tokens], [kind for _, kind in tokens]


def _special(folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any], tokens: list[str]) -> dict[str, int]:
    generation = _optional(folder / "generation_config.json")
    numbers = {text: number for number, text in enumerate(tokens)}

    def named(key: str) -> list[int]:
        value = settings.get(f"{key}_token")
        text = value.get("content") if isinstance(value, dict) else value
        return [numbers[text]] if text in numbers else []

    def listed(source: Mapping[str, Any], key: str) -> list[int]:
        value = source.get(f"{key}_token_id")
        return [value] if isinstance(value, int) else list(value or [])

    special: dict[str, int] = {}
    ends = list(dict.fromkeys([*named("eos"), *listed(generation, "eos"), *listed(config, "eos")]))
    if len(ends) > 3:
        raise UserError(f"the model in {folder} has {len(ends)} EOS tokens; GGUF has fields for three")
    special |= dict(zip(("eos", "eot", "eom"), ends, strict=False))
    for key, name in (("bos", "bos"), ("pad", "padding"), ("unk", "unknown")):
        if found := [*named(key), *listed(config, key)]:
            special[name] = found[0]
    return special


def _additions(path: Path, settings: Mapping[str, Any], special: Mapping[str, int]) -> tuple[bool, bool]:
    """Whether a text gets a first and a last token. What the tokenizer does counts, unless its settings say."""
    from tokenizers import Tokenizer

    try:
        added = Tokenizer.from_str(path.read_text(encoding="utf-8-sig")).encode("").ids
    except Exception as error:  # the package raises Exception itself
        raise UserError(f"cannot read {path}: {error}") from error
    first = added[:1] == [special.get("bos")]
    last = added[first:][-1:] == [special.get("eos")]
    add_bos, add_eos = settings.get("add_bos_token"), settings.get("add_eos_token")
    return (
        (first if add_bos is None else bool(add_bos)) and "bos" in special,
        (last if add_eos is None else bool(add_eos)) and "eos" in special,
    )
