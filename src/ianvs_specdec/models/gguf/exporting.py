"""Export a Hugging Face folder to a GGUF file, for llama.cpp and programs based on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ianvs_specdec.common.errors import UserError, install_command, unknown
from ianvs_specdec.common.storage.atomic import replacing
from ianvs_specdec.models.gguf.architecture import Architecture, architecture
from ianvs_specdec.models.gguf.vocabulary import Vocabulary, vocabulary
from ianvs_specdec.models.headers import Header, headers
from ianvs_specdec.models.validation import check_model, read_config

TYPES = ("f32", "f16", "bf16", "q8_0")
EXPORTED = ("F32", "F16", "BF16")
"""Types in safetensors that are exported."""
BLOCK_VALUES = 1 << 22
"""Weights converted at a time: 16 MB as float32."""
_MAX_F16 = 65504.0


def export_gguf(folder: Path, out: Path, kind: str) -> int:
    """Write the model in ``folder`` to ``out``; returns the bytes written.

    ``kind``: the type of all matrices, one of ``TYPES``. Vectors (norms, biases) and routers to experts are float32, as
    llama.cpp requires; in a ``q8_0`` file, rows whose length is not a multiple of 32 are f16. The file is written
    atomically, with at most one tensor in memory.

    Raises UserError for models that cannot be exported, and if the package ``gguf`` is missing.
    """
    if kind not in TYPES:
        raise unknown("type of weights", kind, TYPES)
    try:
        import gguf
    except ImportError as error:
        raise UserError(f"writing GGUF needs the package gguf: {install_command('gguf')}") from error
    # It logs the byte order of every file.
    logging.getLogger("gguf.gguf_writer").setLevel(logging.WARNING)
    config = read_config(folder)
    weights = _weights(folder)
    model = architecture(config, {name: header.shape for name, header in weights.items()})
    check_model(folder, what=f"the model {folder}")
    words = vocabulary(folder, config, int(model.metadata["vocab_size"]))
    with replacing(out) as temporary:
        writer: Any = gguf.GGUFWriter(str(temporary), model.name)
        try:
            _write_metadata(writer, folder.resolve().name, model, words, kind)
            tensors = [_Tensor(writer, model, weights, name, kind) for name in sorted(model.tensors, key=_place)]
            for name, factors in model.factors.items():
                writer.add_tensor_info(name, factors.shape, factors.dtype, factors.nbytes)
            writer.write_header_to_file(temporary)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in tensors:
                writer.write_tensor_data(tensor)
            for factors in model.factors.values():
                writer.write_tensor_data(factors)
            writer.flush()
        finally:
            writer.close()
        return temporary.stat().st_size


def _weights(folder: Path) -> dict[str, Header]:
    if not (found := headers(folder)):
        raise UserError(f"the folder {folder} has no weights in safetensors format (model*.safetensors)")
    for name, header in found.items():
        if header.kind not in EXPORTED:
            raise UserError(
                f"{header.file}: the tensor {name} has type {header.kind}, not one of {', '.join(EXPORTED)}: export "
                "the model as it was before it was quantized"
            )
    return found


def _place(name: str) -> tuple[int, int, str]:
    """Sort key: embedding, layers in order, others."""
    parts = name.split(".")
    return (1, int(parts[1]), name) if parts[0] == "blk" else (0 if parts[0] == "token_embd" else 2, 0, name)


def _write_metadata(writer: Any, name: str, model: Architecture, words: Vocabulary, kind: str) -> None:
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType[{"f32": "ALL_F32"}.get(kind, f"MOSTLY_{kind.upper()}")])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in model.metadata.items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add = kinds[type(value)]
        add(f"{model.name}.{key}", value)
    writer.add_tokenizer_model(words.model)
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    writer.add_token_merges(words.merges)
    writer.add_token_scores(words.scores)
    for key, number in words.special.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", number)
    writer.add_add_bos_token(words.add_bos)
    writer.add_add_eos_token(words.add_eos)
    writer.add_add_space_prefix(words.add_space_prefix)
    writer.add_string("tokenizer.chat_template", words.chat_template)


class _Tensor:
    """One tensor of the file. The writer learns its size at once; it is converted when it is written."""

    def __init__(self, writer: Any, model: Architecture, weights: dict[str, Header], name: str, kind: str) -> None:
        import gguf

        self._weights, self._names = weights, model.tensors[name]
        self._shape = model.shape(name, {part: weights[part].shape for part in self._names})
        self._order, self._offset = model.row_order(name), model.offset(name)
        if self._order is not None and len(self._order) != self._shape[0]:
            rows = f"the tensor {self._names[0]} has {self._shape[0]} rows"
            raise UserError(f"{rows}; config.json says {len(self._order)}")
        if len(self._shape) == 1 or ".ffn_gate_inp." in name:
            kind = "f32"
        elif kind == "q8_0" and self._shape[-1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_0][0]:
            kind = "f16"
        self._type = gguf.GGMLQuantizationType[kind.upper()]
        values, size = gguf.GGML_QUANT_SIZES[self._type]
        self.nbytes = int(np.prod(self._shape)) // values * size
        writer.add_tensor_info(name, self._shape, np.dtype(np.float32), self.nbytes, raw_dtype=self._type)

    def tofile(self, file: IO[bytes]) -> None:
        """Write the data; the method of NumPy's arrays that the writer calls."""
        for name in self._names:
            for block in self._blocks(name):
                block.tofile(file)

    def _blocks(self, name: str) -> Iterator[np.ndarray[Any, Any]]:
        import gguf
        from safetensors import safe_open

        header = self._weights[name]
        rows = max(1, BLOCK_VALUES // max(1, int(np.prod(header.shape[1:]))))
        half = self._type in (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0)
        with safe_open(header.file, framework="pt") as file:
            # A slice of a file cannot be permuted.
            source = file.get_slice(name) if self._order is None else file.get_tensor(name)[self._order]
            for start in range(0, header.shape[0], rows):
                block = source[start : start + rows].float().numpy() + np.float32(self._offset)
                if not np.isfinite(block).all():
                    raise UserError(f"the tensor {name} holds numbers that are not finite (NaN or infinity)")
                if half and np.abs(block).max(initial=0.0) > _MAX_F16:
                    raise UserError(f"the tensor {name} has weights beyond float16's range: export as bf16 or f32")
                yield gguf.quants.quantize(block, self._type)
