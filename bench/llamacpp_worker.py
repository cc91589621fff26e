"""A llama.cpp process, run by a Python with llama-cpp-python: greedy, autoregressive, with the loops of llama.cpp's
examples. Decoding and sampling are one library call each.

Uses the protocol of ``ianvs_specdec.backends.process``, one request at a time. Engine arguments: ``model`` (a GGUF
file), ``dtype``, ``threads``, ``positions`` and ``at_once``. ``sampling`` of a request: ``max_tokens`` and
``stop_token_ids``; with ``prompts`` and ``at_once`` the prompts are decoded concurrently, and the reply has ``outputs``
and ``seconds``; with ``rows`` the reply has the ``seconds`` of one step of ``rows`` tokens after the prompt, or of the
prompt itself if ``rows`` is 0.

``llamacpp_worker.py quantize FILE OUT TYPE`` quantizes a GGUF file, as ``llama-quantize`` does.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any


def main() -> int:
    import llama_cpp as c

    if sys.argv[1:2] == ["quantize"]:
        return quantize(c, *sys.argv[2:])
    # The library prints to standard output: redirect that to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        # Its kernels need AMX permission: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
        ctypes.CDLL(None).syscall(158, 0x1023, 18)
    c.llama_backend_init()
    engine = json.loads(sys.stdin.readline())["engine"]
    model = c.llama_model_load_from_file(engine["model"].encode(), c.llama_model_default_params())
    if not model:
        print(json.dumps({"failed": f"llama.cpp cannot load {engine['model']}"}), file=answers, flush=True)
        return 1
    contexts: dict[int, Context] = {}

    def context_of(sequences: int) -> Context:
        if sequences not in contexts:
            contexts[sequences] = Context(c, model, engine, sequences)
        return contexts[sequences]

    ready = {"memory": context_of(1).held if engine["at_once"] == 1 else None}
    print(json.dumps({"ready": ready}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "abort" not in request:
            sampling = request["sampling"]
            for answer in context_of(sampling.get("at_once", 1)).answer(request["prompt"], **sampling):
                print(json.dumps({"id": request["id"], "finish": "stop", **answer}), file=answers, flush=True)
    return 0


def quantize(c: Any, source: str, out: str, kind: str) -> int:
    c.llama_backend_init()
    settings = c.llama_model_quantize_default_params()
    settings.ftype = getattr(c, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    return int(c.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(settings)))


@dataclass
class Sequence:
    """A running request: its index, next tokens to compute, and their position."""

    index: int
    tokens: list[int]
    position: int = 0


class Context:
    """The state of up to ``sequences`` sequences in a unified KV cache, with which llama.cpp is up to twice as fast for
    short prompts. ``held``: bytes of weights and cache."""

    def __init__(self, c: Any, model: Any, engine: dict[str, Any], sequences: int) -> None:
        self._c, self._sequences = c, sequences
        settings = c.llama_context_default_params()
        settings.n_ctx = settings.n_batch = engine["positions"] * sequences
        settings.n_seq_max, settings.kv_unified = sequences, True
        settings.n_threads = settings.n_threads_batch = engine["threads"]
        wide = engine["dtype"] == "float32"
        settings.type_k = settings.type_v = c.GGML_TYPE_F32 if wide else c.GGML_TYPE_F16
        self._context = c.llama_init_from_model(model, settings)
        if not self._context:
            raise SystemExit(f"llama.cpp has no room for {sequences} sequences of {engine['positions']} tokens")
        self._sampler = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        c.llama_sampler_chain_add(self._sampler, c.llama_sampler_init_greedy())
        self._batch = c.llama_batch_init(c.llama_n_batch(self._context), 0, 1)
        self._memory = c.llama_get_memory(self._context)
        self._prompt: list[int] = []
        self.held = c.llama_model_size(model) + cache_bytes(c, model, self._context, 4 if wide else 2)

    def answer(
        self,
        prompt: list[int],
        max_tokens: int = 0,
        stop_token_ids: tuple[int, ...] = (),
        rows: int | None = None,
        prompts: list[list[int]] | None = None,
        at_once: int = 1,
    ) -> list[dict[str, Any]]:
        if rows is not None:
            return [{"seconds": self.step(prompt, rows)}]
        started = time.monotonic()
        outputs, first = self.decode(prompts or [prompt], set(stop_token_ids), max_tokens)
        ended = time.monotonic()
        if prompts is not None:
            return [{"outputs": outputs, "seconds": ended - started}]
        (output,) = outputs
        rest = {"tokens": output[1:], "time": ended, "started": started}
        return [{"tokens": output[:1], "time": first, "finish": None}, rest]

    def decode(self, prompts: list[list[int]], ends: set[int], limit: int) -> tuple[list[list[int]], float]:
        """The outputs, and the time of the first token. Continuous batching: a batch has one token of each running
        request and the prompts of new ones."""
        self._clear()
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting, free = deque(range(len(prompts))), list(range(self._sequences))
        running: dict[int, Sequence] = {}
        first = 0.0
        while waiting or running:
            while waiting and free:
                index = waiting.popleft()
                running[free.pop()] = Sequence(index, prompts[index])
            chosen = self._step(running)
            first = first or time.monotonic()
            for number, token in zip(list(running), chosen, strict=True):
                output = outputs[running[number].index]
                output.append(token)
                if token in ends or len(output) == limit:
                    del running[number]
                    self._c.llama_memory_seq_rm(self._memory, number, -1, -1)
                    free.append(number)
        return outputs, first

    def step(self, prompt: list[int], rows: int) -> float:
        """Seconds of one step of ``rows`` tokens after ``prompt``, with the logits of each; of ``prompt`` if ``rows``
        is 0."""
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

    def _step(self, running: dict[int, Sequence]) -> list[int]:
        """The next token of each."""
        parts = [(number, one.tokens, one.position, [len(one.tokens) - 1]) for number, one in running.items()]
        self._compute(parts)
        chosen, row = [], -1
        for sequence in running.values():
            row += len(sequence.tokens)
            token = int(self._c.llama_sampler_sample(self._sampler, self._context, row))
            sequence.position += len(sequence.tokens)
            sequence.tokens = [token]
            chosen.append(token)
        return chosen

    def _compute(self, parts: list[tuple[int, list[int], int, list[int]]]) -> float:
        """Compute tokens of several sequences: (id, tokens, first position, rows with logits). Returns seconds."""
        batch, row = self._batch, 0
        for number, tokens, position, wanted in parts:
            for i, token in enumerate(tokens):
                batch.token[row + i], batch.pos[row + i] = token, position + i
                batch.n_seq_id[row + i], batch.seq_id[row + i][0], batch.logits[row + i] = 1, number, 0
            for i in wanted:
                batch.logits[row + i] = 1
            row += len(tokens)
        batch.n_tokens = row
        started = time.monotonic()
        if self._c.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp failed to decode")
        self._c.llama_synchronize(self._context)
        return time.monotonic() - started


def cache_bytes(c: Any, model: Any, context: Any, width: int) -> int:
    buffer = ctypes.create_string_buffer(64)

    def number(key: str) -> int:
        return int(buffer.value) if c.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer)) > 0 else 0

    c.llama_model_meta_val_str(model, b"general.architecture", buffer, len(buffer))
    name = buffer.value.decode()
    head = c.llama_model_n_embd(model) // c.llama_model_n_head(model)
    position = sum(number(f"{name}.attention.{part}_length") or head for part in ("key", "value"))
    return c.llama_n_ctx(context) * c.llama_model_n_layer(model) * c.llama_model_n_head_kv(model) * position * width


if __name__ == "__main__":
    sys.exit(main())
