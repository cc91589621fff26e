"""llama.cpp behind the protocol of ``serve.py``: a GGUF file, autoregressive, in the loops of llama.cpp's own examples.

Decoding and choosing a token are one call each into the library; nothing else is done between two tokens but filling
the next batch.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import sys
import time
from collections import deque
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from serve import Decode, serve


def load(options: argparse.Namespace) -> tuple[dict[str, str], Decode]:
    import llama_cpp as c

    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        # Its kernels use AMX without asking for it: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
        ctypes.CDLL(None).syscall(158, 0x1023, 18)
    c.llama_backend_init()
    model = c.llama_model_load_from_file(str(options.model).encode(), c.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {options.model}")
    contexts: dict[int, Context] = {}

    def context_of(sequences: int) -> Context:
        if sequences not in contexts:
            contexts[sequences] = Context(c, model, options, sequences)
        return contexts[sequences]

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        context = context_of(request.get("at_once", 1))
        if "rows" in request:
            return {"seconds": context.step(request["prompt"], request["rows"])}
        ends, limit = set(request["eos_ids"]), request["max_new_tokens"]
        if "prompts" in request:
            return context.decode_all(request["prompts"], ends, limit)
        return context.decode(request["prompt"], ends, limit)

    return {"llama-cpp-python": version("llama-cpp-python")}, answer


@dataclass
class _Sequence:
    """A request under way: its place among those asked, what the next batch computes of it, and where."""

    place: int
    tokens: list[int]
    position: int = 0


class Context:
    """The state of up to ``sequences`` sequences in one buffer for all: with short prompts llama.cpp is up to twice as
    fast so as with a buffer for each."""

    def __init__(self, c: Any, model: Any, options: argparse.Namespace, sequences: int) -> None:
        self._c, self._sequences = c, sequences
        settings = c.llama_context_default_params()
        settings.n_ctx = settings.n_batch = options.positions * sequences
        settings.n_seq_max, settings.kv_unified = sequences, True
        settings.n_threads = settings.n_threads_batch = options.threads
        wide = options.dtype == "float32"
        settings.type_k = settings.type_v = c.GGML_TYPE_F32 if wide else c.GGML_TYPE_F16
        self._context = c.llama_init_from_model(model, settings)
        if not self._context:
            raise SystemExit(f"llama.cpp has no room for {sequences} sequences of {options.positions} tokens")
        self._sampler = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        c.llama_sampler_chain_add(self._sampler, c.llama_sampler_init_greedy())
        self._batch = c.llama_batch_init(c.llama_n_batch(self._context), 0, 1)
        self._memory = c.llama_get_memory(self._context)
        self._prompt: list[int] = []
        self.held = c.llama_model_size(model) + _cache_bytes(c, model, self._context, 4 if wide else 2)

    def decode(self, prompt: list[int], ends: set[int], limit: int) -> dict[str, Any]:
        self._clear()
        started = time.perf_counter()
        output = [self._forward(prompt)]
        ttft = time.perf_counter() - started
        while len(output) < limit and output[-1] not in ends:
            output.append(self._forward(output[-1:]))
        seconds, steps = time.perf_counter() - started, len(output) - 1
        return {
            "output": output,
            "seconds": seconds,
            "steps": steps,
            "emitted": [],
            "ttft": ttft,
            "memory": self.held,
        }

    def decode_all(self, prompts: list[list[int]], ends: set[int], limit: int) -> dict[str, Any]:
        """Whoever ends makes room for the next; a batch has one token of each, and the prompts of those that join."""
        self._clear()
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting, free = deque(range(len(prompts))), list(range(self._sequences))
        running: dict[int, _Sequence] = {}
        started = time.perf_counter()
        while waiting or running:
            while waiting and free:
                place = waiting.popleft()
                running[free.pop()] = _Sequence(place, prompts[place])
            chosen = self._step(running)
            for number, token in zip(list(running), chosen, strict=True):
                output = outputs[running[number].place]
                output.append(token)
                if token in ends or len(output) == limit:
                    del running[number]
                    self._c.llama_memory_seq_rm(self._memory, number, -1, -1)
                    free.append(number)
        return {"outputs": outputs, "seconds": time.perf_counter() - started, "memory": self.held}

    def step(self, prompt: list[int], rows: int) -> float:
        """Seconds of computing ``rows`` tokens behind ``prompt`` with the logits of each, which are then dropped; of
        computing ``prompt`` where ``rows`` is 0."""
        if not rows or prompt != self._prompt:
            self._clear()
            seconds = self._compute([(0, prompt, 0, [len(prompt) - 1])])
            self._prompt = prompt
            if not rows:
                return seconds
        seconds = self._compute([(0, prompt[:rows], len(prompt), list(range(rows)))])
        self._c.llama_memory_seq_rm(self._memory, 0, len(prompt), -1)
        return seconds

    def _clear(self) -> None:
        self._prompt = []
        self._c.llama_memory_clear(self._memory, False)

    def _forward(self, tokens: list[int]) -> int:
        # The batch only points to them.
        ids = (self._c.llama_token * len(tokens))(*tokens)
        self._run(self._c.llama_batch_get_one(ids, len(tokens)))
        return int(self._c.llama_sampler_sample(self._sampler, self._context, -1))

    def _step(self, running: dict[int, _Sequence]) -> list[int]:
        """The next token of each."""
        self._compute(
            [
                (number, sequence.tokens, sequence.position, [len(sequence.tokens) - 1])
                for number, sequence in running.items()
            ]
        )
        chosen, row = [], -1
        for sequence in running.values():
            row += len(sequence.tokens)
            token = int(self._c.llama_sampler_sample(self._sampler, self._context, row))
            sequence.position += len(sequence.tokens)
            sequence.tokens = [token]
            chosen.append(token)
        return chosen

    def _compute(self, asked: list[tuple[int, list[int], int, list[int]]]) -> float:
        """Seconds for tokens of several sequences: (its number, tokens, position of the first, whose logits)."""
        batch, row = self._batch, 0
        for number, tokens, position, wanted in asked:
            for i, token in enumerate(tokens):
                batch.token[row + i], batch.pos[row + i] = token, position + i
                batch.n_seq_id[row + i], batch.seq_id[row + i][0], batch.logits[row + i] = 1, number, 0
            for i in wanted:
                batch.logits[row + i] = 1
            row += len(tokens)
        batch.n_tokens = row
        started = time.perf_counter()
        self._run(batch)
        self._c.llama_synchronize(self._context)
        return time.perf_counter() - started

    def _run(self, batch: Any) -> None:
        if self._c.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp failed to decode")


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
