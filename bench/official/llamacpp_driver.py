"""llama.cpp behind the protocol of ``serve.py``: a GGUF file, autoregressive, in the loop of llama.cpp's own examples.

Decoding and choosing a token are one call each into the library; nothing else is done between two tokens.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from importlib.metadata import version
from typing import Any

from serve import Decode, serve


def load(options: argparse.Namespace) -> tuple[dict[str, str], Decode]:
    import llama_cpp as c

    c.llama_backend_init()
    model = c.llama_model_load_from_file(str(options.model).encode(), c.llama_model_default_params())
    settings = c.llama_context_default_params()
    settings.n_ctx = settings.n_batch = options.positions
    settings.n_threads = settings.n_threads_batch = options.threads
    cache_type = c.GGML_TYPE_F32 if options.dtype == "float32" else c.GGML_TYPE_F16
    settings.type_k = settings.type_v = cache_type
    context = c.llama_init_from_model(model, settings)
    if not model or not context:
        raise SystemExit(f"llama.cpp cannot load {options.model}")
    sampler = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
    c.llama_sampler_chain_add(sampler, c.llama_sampler_init_greedy())
    memory = c.llama_model_size(model) + _cache_bytes(c, model, context, 4 if options.dtype == "float32" else 2)

    def forward(tokens: list[int]) -> int:
        # The batch only points to them.
        ids = (c.llama_token * len(tokens))(*tokens)
        if c.llama_decode(context, c.llama_batch_get_one(ids, len(tokens))):
            raise SystemExit("llama.cpp failed to decode")
        return int(c.llama_sampler_sample(sampler, context, -1))

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        ends, limit = set(request["eos_ids"]), request["max_new_tokens"]
        c.llama_memory_clear(c.llama_get_memory(context), False)
        started = time.perf_counter()
        output = [forward(request["prompt"])]
        ttft = time.perf_counter() - started
        while len(output) < limit and output[-1] not in ends:
            output.append(forward(output[-1:]))
        seconds = time.perf_counter() - started
        steps = len(output) - 1
        return {"output": output, "seconds": seconds, "steps": steps, "emitted": [], "ttft": ttft, "memory": memory}

    return {"llama-cpp-python": version("llama-cpp-python")}, decode


def _cache_bytes(c: Any, model: Any, context: Any, width: int) -> int:
    buffer = ctypes.create_string_buffer(64)

    def number(key: str) -> int:
        return int(buffer.value) if c.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer)) > 0 else 0

    c.llama_model_meta_val_str(model, b"general.architecture", buffer, len(buffer))
    name = buffer.value.decode()
    head = c.llama_model_n_embd(model) // c.llama_model_n_head(model)
    position = sum(number(f"{name}.attention.{part}_length") or head for part in ("key", "value"))
    return c.llama_n_ctx(context) * c.llama_model_n_layer(model) * c.llama_model_n_head_kv(model) * position * width


if __name__ == "__main__":
    serve(load, with_torch=False)
