"""A GGUF file as a folder in Hugging Face format: configuration, weights, tokenizer and chat template.

transformers passes over metadata that change what a model computes, and over ``tokenizer.ggml.pre``, the rules by which
a text is split before the merges: configurations and byte-level tokenizers are built here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError, missing_package_error, optional_import, unknown
from ianvs_specdec.common.storage.atomic import replace_folder, temporary_folder
from ianvs_specdec.models.families import FAMILIES
from ianvs_specdec.models.gguf.architecture import architecture
from ianvs_specdec.models.gguf.configuration import cannot, configuration
from ianvs_specdec.models.gguf.vocabulary import CONTROL, IGNORE_MERGES, PRE_TOKENIZERS, USER_DEFINED
from ianvs_specdec.models.headers import counted
from ianvs_specdec.models.loading import CAUSAL, check_finite, loading_error

MAGIC = b"GGUF"
TYPES = ("bfloat16", "float16", "float32")
UNQUANTIZED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
QUANTIZED = "bfloat16"
"""What ``dtype: auto`` makes of quantized weights."""

END_NAMES = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>"),
        *("<|end_of_text|>", "<end_of_utterance>"),
    )
)
"""Control tokens that end an answer in llama.cpp (src/llama-vocab.cpp), whichever ids a file names."""


@optional_import()
def import_gguf(path: Path, folder: Path, kind: str | None = None) -> int:
    """Write the model in ``path`` to ``folder``, with weights of the type ``kind``, one of ``TYPES``; returns the bytes
    of the weights. None = without rounding: each tensor has the first of ``TYPES`` that holds all its numbers. The
    folder appears whole or not at all. Weights are in memory as float32, all of them at a time.

    Raises UserError for a file that cannot be read, or whose weights are not those that its metadata ask for.
    """
    if kind not in (None, *TYPES):
        raise unknown("type of weights", kind, TYPES)
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    import torch
    from safetensors.torch import save_file

    try:
        reader = _reader(path)
        config, tensors = _read(reader)
        tokenizer = _tokenizer(path, reader, config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except Exception as error:
        # Damaged files raise whatever their reader has.
        raise missing_package_error(error) or loading_error(str(path), error) from error
    config.dtype = getattr(torch, kind or _kind(reader))
    with temporary_folder(folder) as temporary:
        config.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        weights = {name: _stored(tensor, kind).contiguous() for name, tensor in tensors.items()}
        save_file(weights, temporary / "model.safetensors", metadata={"format": "pt"})
        temporary.chmod(0o755)
        (temporary / "model.safetensors").chmod(0o644)
        replace_folder(temporary, folder)
    return sum(tensor.nbytes for tensor in weights.values())


def _reader(path: Path) -> Any:
    import gguf

    try:
        return gguf.GGUFReader(path)
    except ValueError as error:
        if "GGMLQuantizationType" in str(error):
            raise UserError(f"a tensor has an unknown type: {error}") from error
        raise UserError(f"it is damaged or cut off ({error}): copy or download it again") from error


def _kind(reader: Any) -> str:
    """The type, one of ``TYPES``, of most weights of a file."""
    numbers = Counter[str]()
    for tensor in reader.tensors:
        numbers[tensor.tensor_type.name] += int(tensor.n_elements)
    return UNQUANTIZED.get(max(numbers, key=numbers.__getitem__, default=""), QUANTIZED)


def _stored(tensor: Any, kind: str | None) -> Any:
    import torch

    types = [getattr(torch, name) for name in TYPES] if kind is None else [getattr(torch, kind)]
    return next(made for made in map(tensor.to, types) if kind or torch.equal(made.float(), tensor.float()))


def _read(reader: Any) -> tuple[Any, dict[str, Any]]:
    """Configuration, and weights by name."""
    import gguf
    import torch
    import transformers

    _check_vocabulary(reader)
    found = {tensor.name: tensor for tensor in reader.tensors}
    factors = {name: np.asarray(tensor.data) for name, tensor in found.items() if name.startswith("rope_")}
    stated = configuration({key: field.contents() for key, field in reader.fields.items()}, found, factors)
    # Those of the class may lie beyond the vocabulary.
    own: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(**{**stated, **own})
    with torch.device("meta"):
        model = getattr(transformers, CAUSAL).from_config(config)
    config.architectures = [type(model).__name__]
    shapes = {name: tuple(tensor.shape) for name, tensor in _published(model).items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    places = architecture(stated, shapes)
    if missing := places.tensors.keys() - found.keys():
        raise UserError(f"{counted(missing, 'is', 'are')} missing, which its metadata ask for: download it again")
    if superfluous := found.keys() - places.tensors.keys() - places.factors.keys():
        raise cannot(counted(superfluous) + ", which its architecture does not have,")
    tensors: dict[str, Any] = {}
    for place, names in places.tensors.items():
        values = gguf.dequantize(found[place].data, found[place].tensor_type)
        if values.shape != (shape := places.shape(place, shapes)):
            raise UserError(f"{counted([place], 'has')} another shape than the metadata ask for")
        if (order := places.row_order(place)) is not None:
            values = values[np.argsort(order)]
        parts = (values - np.float32(places.offset(place))).reshape(len(names), *shape[-len(shapes[names[0]]) :])
        tensors |= {name: torch.from_numpy(part) for name, part in zip(names, parts, strict=True)}
    check_finite(tensors.items())
    return config, tensors


def _published(model: Any) -> dict[str, Any]:
    """The weights as published models have them: a tensor for each expert, where transformers 5 stacks them."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        weights: dict[str, Any] = model.state_dict()
        return weights
    return dict(revert_weight_conversion(model, model.state_dict()))


def _check_vocabulary(reader: Any) -> None:
    tokens = reader.get_field("tokenizer.ggml.tokens")
    count = 0 if tokens is None else len(tokens.data)
    rows = [int(tensor.shape[1]) for tensor in reader.tensors if tensor.name == "token_embd.weight"]
    if rows != [count]:
        raise UserError(f"its vocabulary has {count} tokens, and its embedding {rows[0] if rows else 'no'} rows")


def _tokenizer(path: Path, reader: Any, config: Any) -> Any:
    """The tokenizer of a file. What ends an answer goes into ``config``."""
    import transformers

    fields = {name: field for name, field in reader.fields.items() if name.startswith("tokenizer.")}

    def value(name: str, default: Any = None) -> Any:
        return fields[f"tokenizer.{name}"].contents() if f"tokenizer.{name}" in fields else default

    tokens = value("ggml.tokens", [])
    ends = [value(f"ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    named = [i for i, kind in enumerate(value("ggml.token_type", [])) if kind == CONTROL and tokens[i] in END_NAMES]
    known = [end for end in dict.fromkeys([*ends, *named]) if end is not None]
    config.eos_token_id = known if len(known) > 1 else known[0] if known else None
    if value("ggml.model") != "gpt2":
        if not value("ggml.add_space_prefix", True) and FAMILIES[config.model_type].space_prefix:
            raise cannot("its SentencePiece tokenizer, which puts no space before a text,")
        return transformers.AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
        )
    numbers = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {name: value(f"ggml.{key}_token_id") for name, key in numbers.items()}
    special = {f"{name}_token": tokens[number] for name, number in ids.items() if number is not None}
    made = _byte_level(tokens, value("ggml.token_type"), value("ggml.merges"), value("ggml.pre", "default"))
    if value("ggml.add_bos_token") and "bos_token" in special:
        from tokenizers.processors import TemplateProcessing

        bos = special["bos_token"]
        made.post_processor = TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, ids["bos"])])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=value("chat_template"), clean_up_tokenization_spaces=False, **special
    )


def _byte_level(tokens: list[str], types: list[int], merges: list[str], pre: str) -> Any:
    """Byte-level BPE with the rules that llama.cpp knows by the name ``pre``. Raises UserError for other names."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    rules = next((rules for rules, name in PRE_TOKENIZERS.items() if name == pre), None)
    if rules is None:
        raise unknown("tokenizer.ggml.pre", pre, PRE_TOKENIZERS.values())
    built = {
        "bytes by words": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
        "bytes": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        "single digits": lambda: pre_tokenizers.Digits(individual_digits=True),
    }
    steps = [
        built[rule]() if rule in built else pre_tokenizers.Split(Regex(rule.removeprefix("split ")), "isolated")
        for rule in rules
    ]
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre in IGNORE_MERGES))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    for kind in (CONTROL, USER_DEFINED):
        added = [token for token, own in zip(tokens, types, strict=True) if own == kind]
        made.add_tokens([AddedToken(token, normalized=False, special=kind == CONTROL) for token in added])
    return made
