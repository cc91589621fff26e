"""vLLM behind the protocol of ``serve.py``, one engine per process: autoregressive, or with the draft head ``--head``.

The engine is made as the back end ``vllm`` makes it. It computes every prompt anew, as all others do: its cache of
prefixes would answer the second time what it has read the first time.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from serve import Decode, serve

BACKEND = Path(__file__).resolve().parents[2] / "src" / "ianvs_specdec" / "backends" / "vllm" / "worker.py"
BLOCKS = 512


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What vLLM is to be loaded with."""
    layout = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    heads = layout.get("num_key_value_heads") or layout["num_attention_heads"]
    head_dim = layout.get("head_dim") or layout["hidden_size"] // layout["num_attention_heads"]
    width = 4 if options.dtype == "float32" else 2
    arguments: dict[str, Any] = {
        "model": str(options.model),
        "dtype": options.dtype,
        "max_model_len": options.positions,
        "enable_prefix_caching": False,
        "max_num_seqs": options.at_once,
    }
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # Room for the sequences in the model's layers and those of a head, and as much again: blocks are coarse.
        room = 2 * options.at_once * (options.positions + BLOCKS)
        layers = layout["num_hidden_layers"] + 4
        arguments["kv_cache_memory_bytes"] = room * layers * 2 * heads * head_dim * width
    if options.head:
        head = json.loads((options.head / "config.json").read_text(encoding="utf-8"))
        arguments["speculative_config"] = {
            "method": "eagle3" if "draft_vocab_size" in head else "eagle",
            "model": str(options.head),
            "num_speculative_tokens": options.drafts,
        }
        arguments["per_request_spec_decode_metrics"] = "summary"
    return arguments


class _Engine:
    """vLLM's engine, asked for one answer (``decode``) or for many at once (``decode_all``)."""

    def __init__(self, engine: Any, memory: int) -> None:
        self._engine, self._memory = engine, memory
        self._numbers = itertools.count()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.decode_all(request) if "prompts" in request else self.decode(request)

    def decode(self, request: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        self._add(request["prompt"], request)
        ttft, result = 0.0, None
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                ttft, result = ttft or time.perf_counter() - started, output.outputs[0]
        seconds = time.perf_counter() - started
        assert result is not None
        output = list(result.token_ids)
        figures = getattr(result, "spec_decode_metrics", None)
        steps = figures.to_dict()["num_spec_steps"] if figures is not None else len(output) - 1
        answer = {"output": output, "seconds": seconds, "steps": steps, "emitted": []}
        return {**answer, "ttft": ttft, "memory": self._memory}

    def decode_all(self, request: dict[str, Any]) -> dict[str, Any]:
        """Whoever ends makes room for the next."""
        started = time.perf_counter()
        waiting, names = deque(request["prompts"]), []
        outputs: dict[str, list[int]] = {}
        running = 0
        while waiting or running:
            while waiting and running < request["at_once"]:
                names.append(self._add(waiting.popleft(), request))
                running += 1
            for output in self._engine.step():
                if output.finished:
                    outputs[output.request_id] = list(output.outputs[0].token_ids)
                    running -= 1
        seconds = time.perf_counter() - started
        return {"outputs": [outputs[name] for name in names], "seconds": seconds, "memory": self._memory}

    def _add(self, prompt: list[int], request: dict[str, Any]) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0,
            max_tokens=request["max_new_tokens"],
            stop_token_ids=request["eos_ids"],
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE,
        )
        name = str(next(self._numbers))
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name


def load(options: argparse.Namespace) -> tuple[dict[str, str], Decode]:
    # By its place: its package is not in this environment.
    spec = importlib.util.spec_from_file_location("backend", BACKEND)
    assert spec is not None
    assert spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    engine, ready = backend.load(_arguments(options))
    return {"vllm": ready["vllm"], "torch": ready["torch"]}, _Engine(engine, ready["memory"]).answer


if __name__ == "__main__":
    serve(load)
