"""A GGUF file in llama.cpp, as a tokenizer and as a target of our decoding loop.

llama.cpp computes logits and has the cache; drafting, acceptance, sampling and stopping are our engine's.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken
from torch import Tensor

from ianvs_specdec.common.errors import UserError, install_command
from ianvs_specdec.engine import Output
from ianvs_specdec.engine.contracts import PromptChunk, StepInput
from ianvs_specdec.engine.rounding import NEAR_TIE, NEAR_TIE_INT8

BATCH = 512
"""Maximum tokens of a call."""
_ERROR = 4
_ALL_F32 = 0
_complaints: list[str] = []
_kept: list[Any] = []  # llama.cpp calls it until the process ends


@functools.cache
def binding() -> Any:
    """The module ``llama_cpp``, whose log is captured for error messages. Raises UserError if it is missing."""
    try:
        import llama_cpp
    except ImportError as error:
        raise UserError(
            f"back end llamacpp needs the package llama-cpp-python: {install_command('llamacpp')}", key="backend"
        ) from error
    except (OSError, RuntimeError) as error:
        # The import loads the compiled library.
        raise UserError(f"llama-cpp-python is installed but does not start: {error}", key="backend") from error

    def listen(level: int, text: bytes, _: Any) -> None:
        if level == _ERROR:
            _complaints.append(text.decode("utf-8", "replace").strip())

    # Its kernels use AMX without requesting it from Linux, which kills the process.
    getattr(torch.cpu, "_init_amx", bool)()
    _kept.append(llama_cpp.llama_log_callback(listen))
    llama_cpp.llama_log_set(_kept[0], ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


class LlamaCppModel:
    """A loaded GGUF file: a ``contracts.Target`` for chains, with one open sequence at a time.

    ``n_ctx``: positions of the cache; None = the model's training length, at most ``default_n_ctx``. The cache is
    float32 if all weights are, else float16. Raises UserError for files that llama.cpp cannot load.
    """

    kind = "llama.cpp"
    default_n_ctx = 8192
    prompt_rows = BATCH
    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, path: Path, *, n_ctx: int | None, threads: int, gpu_layers: int) -> None:
        self._c = binding()
        _complaints.clear()
        settings = self._c.llama_model_default_params()
        settings.n_gpu_layers = gpu_layers
        # Reject weights that are not finite.
        settings.check_tensors = True
        self._model = self._c.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise UserError(f"llama.cpp cannot load {path}: {_complaint()}", key="model")
        self.vocab = self._c.llama_model_get_vocab(self._model)
        trained = int(self._c.llama_model_n_ctx_train(self._model))
        self.window: int = min(n_ctx or self.default_n_ctx, trained)
        context = self._c.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = self.window, BATCH, BATCH
        context.n_threads = context.n_threads_batch = threads
        exact = int(self._c.llama_model_ftype(self._model)) == _ALL_F32
        if exact:
            # Its fused attention computes in float16.
            context.flash_attn_type = self._c.LLAMA_FLASH_ATTN_TYPE_DISABLED
            context.type_k = context.type_v = self._c.GGML_TYPE_F32
        self._cache_value_bytes = 4 if exact else 2
        self._context = self._c.llama_init_from_model(self._model, context)
        if not self._context:
            self._c.llama_model_free(self._model)
            raise UserError(f"llama.cpp cannot prepare a context of {self.window} tokens: {_complaint()}", key="n_ctx")
        self._memory = self._c.llama_get_memory(self._context)
        self._batch = self._c.llama_batch_init(BATCH, 0, 1)
        self._fields = {
            name: np.ctypeslib.as_array(getattr(self._batch, name), shape=(BATCH,))
            for name in ("token", "pos", "n_seq_id", "logits")
        }
        self._fields["n_seq_id"][:] = 1
        for i in range(BATCH):
            self._batch.seq_id[i][0] = 0
        self.vocabulary = int(self._c.llama_vocab_n_tokens(self.vocab))
        self._sequence: LlamaCppSequence | None = None
        # With quantized weights, activations have 8 bits; keys and values are float16.
        self.near_tie = NEAR_TIE[torch.float32] if exact else NEAR_TIE_INT8

    @property
    def layers(self) -> int:
        return int(self._c.llama_model_n_layer(self._model))

    @property
    def library_bytes(self) -> int:
        """Bytes of the weights and of the preallocated cache."""
        positions = int(self._c.llama_n_ctx(self._context))
        return int(self._c.llama_model_size(self._model)) + self.memory(positions)

    def memory(self, positions: int) -> int:
        """Bytes of keys and values of ``positions`` tokens."""
        metadata = self.metadata()
        name = metadata["general.architecture"]
        heads, key_heads = (
            int(count(self._model)) for count in (self._c.llama_model_n_head, self._c.llama_model_n_head_kv)
        )
        head_dim = int(self._c.llama_model_n_embd(self._model)) // heads
        position = sum(int(metadata.get(f"{name}.attention.{part}_length", head_dim)) for part in ("key", "value"))
        return positions * self.layers * key_heads * position * self._cache_value_bytes

    def instructions(self) -> str:
        """The instruction sets that llama.cpp was compiled for, in its words."""
        info = self._c.llama_print_system_info().decode("utf-8", "replace")
        return " ".join(dict.fromkeys(re.findall(r"(\w+) = 1\b", info)))

    def metadata(self) -> dict[str, str]:
        """The file's metadata, without lists."""
        buffer = ctypes.create_string_buffer(1 << 16)

        def text(function: Any, i: int) -> str:
            size = function(self._model, i, buffer, len(buffer))
            return buffer.raw[: min(max(size, 0), len(buffer) - 1)].decode("utf-8", "replace")

        return {
            text(self._c.llama_model_meta_key_by_index, i): text(self._c.llama_model_meta_val_str_by_index, i)
            for i in range(self._c.llama_model_meta_count(self._model))
        }

    @property
    def embedding(self) -> Tensor:
        raise NotImplementedError("llama.cpp does not expose its embeddings")

    def unembed(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError("llama.cpp does not compute logits of given hidden states")

    def warm_up(self, tokens: int) -> None:
        pass  # llama.cpp compiles nothing while it runs

    @property
    def weights(self) -> Sequence[Any]:
        return (self,)

    def open(self, features: Sequence[int] = ()) -> LlamaCppSequence:
        if features:
            raise NotImplementedError("llama.cpp does not expose its hidden states")
        if self._sequence is not None:
            raise RuntimeError("llama.cpp's cache holds one sequence: close the previous one")
        self._c.llama_memory_clear(self._memory, False)
        self._sequence = LlamaCppSequence(self)
        return self._sequence

    def step(self, parts: Sequence[tuple[Any, StepInput]]) -> list[Output]:
        ((sequence, piece),) = parts
        if not isinstance(piece, PromptChunk):
            if not piece.is_chain:
                raise ValueError("llama.cpp's cache of one sequence verifies chains only")
            self._forward(piece.tokens, sequence.length, last_only=False)
            return [Output(self._logits(len(piece)))]
        self._forward(piece.tokens, sequence.length, last_only=True)
        sequence.length += len(piece.tokens)
        return [Output(self._logits(1) if piece.last else torch.empty(0, self.vocabulary))]

    def keep(self, positions: int) -> None:
        """Drop keys and values after ``positions``."""
        self._c.llama_memory_seq_rm(self._memory, 0, positions, -1)

    def free(self) -> None:
        """Called as the sequence is closed."""
        self._sequence = None

    def _forward(self, tokens: Sequence[int], start: int, *, last_only: bool) -> None:
        count = len(tokens)
        self._fields["token"][:count] = tokens
        self._fields["pos"][:count] = np.arange(start, start + count)
        self._fields["logits"][:count] = not last_only
        self._fields["logits"][count - 1] = 1
        self._batch.n_tokens = count
        _complaints.clear()
        status = self._c.llama_decode(self._context, self._batch)
        if status:
            raise UserError(f"llama.cpp failed with status {status} at position {start}: {_complaint()}")

    def _logits(self, rows: int) -> Tensor:
        found = self._c.llama_get_logits(self._context)
        # The next call overwrites them.
        return torch.from_numpy(np.ctypeslib.as_array(found, shape=(rows, self.vocabulary)).copy())

    def close(self) -> None:
        """Free everything. The model cannot be used afterwards."""
        self._fields.clear()
        self._c.llama_batch_free(self._batch)
        self._c.llama_free(self._context)
        self._c.llama_model_free(self._model)


class LlamaCppSequence:
    """Implements ``contracts.SequenceState``; ``length``: cached tokens."""

    def __init__(self, model: LlamaCppModel) -> None:
        self._model: LlamaCppModel | None = model
        self.position_limit = model.window
        self.length = 0

    def commit(self, path: Sequence[int]) -> None:
        self.restore(self.length + len(path))

    def snapshot(self) -> int:
        return self.length

    def restore(self, snapshot: int) -> None:
        assert self._model is not None, "the sequence is closed"
        self.length = snapshot
        self._model.keep(snapshot)

    def close(self) -> None:
        if self._model is not None:
            self._model.free()
            self._model = None


def _complaint() -> str:
    return "; ".join(dict.fromkeys(line for line in _complaints if line)) or "no reason given"


class GgufTokenizer:
    """Vocabulary and chat template of a GGUF file, with the tokenizer interface that ``prompts.Chat`` needs."""

    def __init__(self, model: LlamaCppModel) -> None:
        self._c, self._vocab = binding(), model.vocab
        metadata = model.metadata()
        template = self._c.llama_model_chat_template(model._model, None)
        self.chat_template = template.decode("utf-8", "replace") if template else ""
        spaced = metadata.get("tokenizer.ggml.add_space_prefix", "true") == "true"
        self._space_before = spaced and metadata.get("tokenizer.ggml.model") == "llama"
        count = range(int(self._c.llama_vocab_n_tokens(self._vocab)))
        self.ends = frozenset(i for i in count if self._c.llama_vocab_is_eog(self._vocab, i))
        self.special_tokens_map = {
            f"{name}_token": self._text(number)
            for name in ("bos", "eos")
            if (number := getattr(self._c, f"llama_vocab_{name}")(self._vocab)) >= 0
        }
        controls = (i for i in count if self._c.llama_vocab_is_control(self._vocab, i))
        self.added_tokens_decoder = {i: AddedToken(self._text(i), special=True) for i in controls}
        self._pieces: dict[tuple[int, bool], bytes] = {}

    def _text(self, number: int) -> str:
        text: str = self._c.llama_vocab_get_text(self._vocab, number).decode("utf-8", "replace")
        return text

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 8
        ids = (self._c.llama_token * room)()
        count = self._c.llama_tokenize(self._vocab, data, len(data), ids, room, add_special_tokens, True)
        if count < 0:
            raise UserError(f"llama.cpp cannot tokenize a text of {len(text)} characters")
        return {"input_ids": list(ids[:count])}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        data = b"".join(self._piece(i, special=not skip_special_tokens) for i in ids)
        data = data[1:] if self._space_before and data.startswith(b" ") else data
        return data.decode("utf-8", "replace")

    def _piece(self, number: int, *, special: bool) -> bytes:
        if (number, special) not in self._pieces:
            buffer = ctypes.create_string_buffer(512)
            size = self._c.llama_token_to_piece(self._vocab, number, buffer, len(buffer), 0, special)
            self._pieces[number, special] = buffer.raw[: max(size, 0)]
        return self._pieces[number, special]
