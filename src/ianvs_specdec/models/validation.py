"""Check the weights of a model folder against its config.json, using headers only.

For the ``families`` without experts, the configuration determines every tensor's name and shape. For other models only
the numbers of the configuration are checked here; ``loading`` checks the rest.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.models.families import FAMILIES, Family
from ianvs_specdec.models.headers import FLOATS, Header, counted, headers
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.models.numbers import MAX_SIZE, check_numbers

CONFIG, GENERATION = "config.json", "generation_config.json"
Shapes = dict[str, tuple[int, ...]]

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
WEIGHT_NAMES = re.compile(r"(^|\.)(weight|bias)$")
IGNORED = re.compile(r"rotary_emb\.inv_freq$")
"""Tensors of older files that follow from the configuration."""
EAGLE_NAMES = re.compile(r"(model\.)?(midlayer\.|fc\.(weight|bias)$)")
DFLASH_NAMES = {"hidden_norm.weight", "encoder.fc.weight"}
MEDUSA_NAMES = re.compile(r"\d+\.\d+\.linear\.weight")
MEDUSA_FILES = "medusa_lm_head.*"


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a target that a draft head must fit."""

    vocabulary: int
    hidden: int
    layers: int
    window: int | None = None


TOKENIZERS = ("tokenizer*", "vocab*", "*.tiktoken", "*.model", "tekken.json", "merges.txt")
"""File patterns of tokenizers in Hugging Face format."""


SCALES = re.compile(r"scale|SCB$|absmax|quant_state")
"""Tensors that dequantize quantized weights."""
PACKAGES = {
    **dict.fromkeys(("bitnet", "fbgemm_fp8", "fp8", "mxfp4", "mxfp8", "nvfp4"), "accelerate"),
    **{name: name for name in ("auto_round", "compressed_tensors", "hqq", "quark", "torchao", "vptq")},
    **{name: f"accelerate {package}" for name, package in (("aqlm", "aqlm"), ("bitsandbytes", "bitsandbytes"))},
    **{name: f"accelerate {package}" for name, package in (("awq", "gptqmodel"), ("gptq", "optimum gptqmodel"))},
    **{name: f"accelerate {package}" for name, package in (("eetq", "kernels"), ("quanto", "optimum"))},
}
"""``quant_method`` of a configuration -> the packages that transformers needs to load the weights."""


def check_model(folder: Path, *, what: str, key: str | None = None, causal: bool = True, vllm: bool = False) -> None:
    """Raise UserError with ``key`` if the folder's weights do not match its config.json. Reads headers only.

    ``what``: name of the model in the message. ``causal``: it is a language model. ``vllm``: vLLM loads it, so that
    packages of transformers may be missing.
    """
    try:
        tensors = headers(folder)
        _check_kind(folder, tensors)
        config = read_config(folder, tensors)
        if not tensors:
            raise UserError(
                "it holds no weights in safetensors format (model.safetensors, or model.safetensors.index.json and the "
                "files that it lists); pickled weights are not loaded because they may run code (docs/backends.md "
                "has the command that converts them)"
            )
        if causal:
            _check_ends(folder, config)
        quantized = config.get("quantization_config") or {}
        if quantized and not vllm:
            _check_packages(quantized)
        family = FAMILIES.get(str(config.get("model_type")))
        if causal and family and not family.experts and not quantized:
            _check_tensors(config, family, tensors)
        _check_types(tensors, bool(quantized))
    except UserError as error:
        raise UserError(f"cannot load {what}: {error}", key=key) from error


def check_tokenizer(folder: Path, *, what: str, key: str | None = None) -> None:
    """Raise UserError if a model folder has no tokenizer, or a package is missing that reads it. Warns if there is no
    chat template."""
    if not any(next(folder.glob(name), None) for name in TOKENIZERS):
        message = "has no tokenizer (tokenizer.json or tokenizer.model): copy the tokenizer files of the model into it"
        raise UserError(f"{what} {message}", key=key)
    model, settings = folder / "tokenizer.model", folder / "tokenizer_config.json"
    if model.is_file() and not (folder / "tokenizer.json").is_file():
        # Llama 3's original tokenizer.model has tiktoken's format.
        needed = ("sentencepiece", "google.protobuf") if model.read_bytes()[:1] == b"\n" else ("tiktoken",)
        _check_installed(f"{what} has its tokenizer in tokenizer.model alone, for which transformers", needed, key)
    config = read_object(settings, key=key) if settings.is_file() else {}
    if not (config.get("chat_template") or any(folder.glob("*chat_template*"))):
        warn_once(f"{what} has no chat template: chats become plain text, User: ... Assistant:")


def _check_installed(what: str, packages: Iterable[str], key: str | None = None) -> None:
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(f"{what} needs the package {missing[0]}: pip install {' '.join(missing)}", key=key)


def _check_packages(quantized: Mapping[str, Any]) -> None:
    bits = quantized.get("load_in_8bit") or quantized.get("load_in_4bit")
    method = "bitsandbytes" if bits else str(quantized.get("quant_method"))
    if (packages := PACKAGES.get(method.replace("-", "_"))) is None:
        raise unknown(f"quant_method in {CONFIG}, for transformers,", method, PACKAGES)
    user = f"its weights are quantized with {method}, for which transformers, other than vLLM,"
    _check_installed(user, packages.split())


def read_config(folder: Path, tensors: Mapping[str, Header] | None = None, *, key: str | None = None) -> dict[str, Any]:
    """config.json, whose numbers were checked against the weights. ``tensors``: the folder's headers, if already read.
    Raises UserError with ``key``."""
    config = read_object(folder / CONFIG, key=key)
    check_numbers(folder / CONFIG, config, headers(folder, key=key) if tensors is None else tensors, key=key)
    return config


def model_sizes(config: Mapping[str, Any]) -> ModelSizes | None:
    """The sizes of a model from its configuration; None if the usual keys are missing."""
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
    found = (config.get(name) for name in names)
    vocabulary, hidden, layers, window = (value if type(value) is int else None for value in found)
    if vocabulary is None or hidden is None or layers is None:
        return None
    return ModelSizes(vocabulary, hidden, layers, window)


def missing_tensors(names: Iterable[str]) -> UserError:
    return UserError(f"{counted(names, 'is', 'are')} missing from the weights, which {CONFIG} asks for")


def unexpected_tensors(names: Iterable[str]) -> UserError:
    return UserError(
        f"the weights hold {counted(names)}, which a model with this {CONFIG} does not have: one of the two files "
        "belongs to another model"
    )


def _check_kind(folder: Path, tensors: Mapping[str, Header]) -> None:
    head = None
    if DFLASH_NAMES & tensors.keys():
        head = "a DFlash head"
    elif any(EAGLE_NAMES.match(name) for name in tensors):
        head = "an EAGLE head"
    elif any(MEDUSA_NAMES.fullmatch(name) for name in tensors) or (not tensors and any(folder.glob(MEDUSA_FILES))):
        head = "Medusa heads"
    if head is not None:
        raise UserError(f"it is {head}, not a model: name it as head, and as model the one that it was trained for")


def _check_ends(folder: Path, config: Mapping[str, Any]) -> None:
    """transformers ignores an unreadable file; answers would then never end."""
    size = (config.get("text_config") or config).get("vocab_size")
    most = size if type(size) is int else MAX_SIZE
    for file in (folder / GENERATION, folder / CONFIG):
        ends = read_object(file).get("eos_token_id") if file.is_file() else None
        listed = ends if isinstance(ends, list) else [ends or 0]
        if not all(type(token) is int and 0 <= token < most for token in listed):
            reason = f"eos_token_id must be the id of a token, or a list of ids, below {most}, not {ends!r:.40}"
            raise UserError(f"{file}: {reason}")


def _check_types(tensors: Mapping[str, Header], quantized: bool) -> None:
    """Without their scales, quantized integers would be used as weights."""
    scaled = {name.rpartition(".")[0] for name in tensors if quantized and SCALES.search(name)}
    for name, header in sorted(tensors.items()):
        # A bias with several dimensions is a mask, in older files of GPT-2.
        mask = name.endswith("bias") and len(header.shape) > 1
        whole = header.kind in FLOATS or mask or not scaled.isdisjoint((name, name.rpartition(".")[0]))
        if WEIGHT_NAMES.search(name) and not whole:
            wanted = "and has no scale" if quantized else "expected floating point"
            raise UserError(f"the tensor {name} in {header.file} is of type {header.kind}, {wanted}")


def _check_tensors(config: Mapping[str, Any], family: Family, tensors: Mapping[str, Header]) -> None:
    prefix = "model." if any(name.startswith("model.") for name in tensors) else ""
    expected = _expected(config, family, prefix)
    if expected is None:
        return
    required, optional = expected
    if missing := required.keys() - tensors.keys():
        raise missing_tensors(missing)
    known = required | optional
    if extra := [name for name in tensors if name not in known and not IGNORED.search(name)]:
        raise unexpected_tensors(extra)
    for name, header in sorted(tensors.items()):
        if name in known and header.shape != known[name]:
            raise UserError(
                f"the tensor {name} in {header.file} has the shape {list(header.shape)}, {CONFIG} asks for "
                f"{list(known[name])}"
            )


def _expected(config: Mapping[str, Any], family: Family, prefix: str) -> tuple[Shapes, Shapes] | None:
    """Required and optional tensors of a model; None if config.json omits sizes."""
    if any(type(config.get(name)) is not int for name in SIZES):
        return None
    hidden, intermediate, queries, layers, vocabulary = (int(config[name]) for name in SIZES)
    for name in ("num_key_value_heads", "head_dim"):
        if config.get(name) is not None and type(config[name]) is not int:
            raise UserError(f"{CONFIG}: {name} must be a whole number, not {config[name]!r:.40}")
    keys = config.get("num_key_value_heads") or queries
    if min(hidden, intermediate, queries, layers, vocabulary) < 1 or queries % keys:
        raise UserError(
            f"{CONFIG}: {', '.join(SIZES)} must be at least 1, num_attention_heads a multiple of num_key_value_heads"
        )
    width = config.get("head_dim") or family.head_dim or hidden // queries
    if width < 2 or width % 2:
        raise UserError(f"{CONFIG}: the width of an attention head is {width}, expected an even number")
    heads = (queries * width, keys * width, keys * width)
    layer = _layer(family, hidden, intermediate, heads, width) | _biases(config, family, hidden, intermediate, heads)
    required = {f"{prefix}embed_tokens.weight": (vocabulary, hidden), f"{prefix}norm.weight": (hidden,)}
    required |= {f"{prefix}layers.{index}.{name}": shape for index in range(layers) for name, shape in layer.items()}
    output: Shapes = {"lm_head.weight": (vocabulary, hidden)}
    return (required, output) if config.get("tie_word_embeddings", family.tied) else (required | output, {})


def _layer(family: Family, hidden: int, intermediate: int, heads: Sequence[int], width: int) -> Shapes:
    """Weights of one layer. ``heads``: outputs of queries, keys and values; ``width``: of one head."""
    query, key, _ = heads
    shapes: Shapes = {f"{name}.weight": (hidden,) for name in family.norms.values()}
    shapes |= {"self_attn.o_proj.weight": (hidden, query), "mlp.down_proj.weight": (hidden, intermediate)}
    if family.fused:
        shapes |= {"self_attn.qkv_proj.weight": (sum(heads), hidden)}
        shapes |= {"mlp.gate_up_proj.weight": (2 * intermediate, hidden)}
    else:
        shapes |= {f"self_attn.{name}_proj.weight": (out, hidden) for name, out in zip("qkv", heads, strict=True)}
        shapes |= {f"mlp.{name}_proj.weight": (intermediate, hidden) for name in ("gate", "up")}
    if family.head_norms:
        whole = family.head_norms == "whole"
        shapes |= {"self_attn.q_norm.weight": (query if whole else width,)}
        shapes |= {"self_attn.k_norm.weight": (key if whole else width,)}
    return shapes


def _biases(config: Mapping[str, Any], family: Family, hidden: int, intermediate: int, heads: Sequence[int]) -> Shapes:
    outputs = {f"self_attn.{name}_proj": out for name, out in zip("qkvo", (*heads, hidden), strict=True)}
    outputs |= {"mlp.gate_proj": intermediate, "mlp.up_proj": intermediate, "mlp.down_proj": hidden}
    named = [name for key in family.biased if config.get(key) for name in outputs if name.startswith(_BIASED[key])]
    if family.qkv_bias:
        named = list(outputs)[:3]
    return {f"{name}.bias": (outputs[name],) for name in named}


_BIASED = {"attention_bias": "self_attn.", "mlp_bias": "mlp."}
