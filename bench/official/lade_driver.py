"""lade 0.0.2 (lookahead decoding, Fu et al., arXiv 2402.02057) behind the protocol of ``serve.py``.

Rows: ``{"level": L, "window": W, "guess": G}``; ``{"generate": true}``, ``generate`` of the transformers in this
environment. The package replaces the greedy search of all models of its process when the environment variable
``USE_LADE`` is not 0.

Every forward is a step, the first one over the prompt included, as the package counts them itself.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from serve import Decode, generate, serve, versions


def load(options: argparse.Namespace) -> tuple[dict[str, str], Decode]:
    import lade
    import torch
    from transformers import AutoModelForCausalLM

    lade.augment_all()
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, torch_dtype=dtype, trust_remote_code=False).eval()
    contexts = _note_contexts(model)

    def speculate(request: dict[str, Any], row: dict[str, int]) -> dict[str, Any]:
        lade.config_lade(LEVEL=row["level"], WINDOW_SIZE=row["window"], GUESS_SET_SIZE=row["guess"], DEBUG=0)
        contexts.clear()
        answer = generate(model, request)
        ends = [*contexts[1:], len(request["prompt"]) + len(answer["output"])]
        emitted = [end - start for start, end in zip(contexts, ends, strict=True)]
        return {**answer, "steps": len(emitted), "emitted": emitted, "prefills": 0}

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        row = request["row"]
        os.environ["USE_LADE"] = "0" if row.get("generate") else "1"
        return generate(model, request) if row.get("generate") else speculate(request, row)

    return versions("lade"), decode


def _note_contexts(model: Any) -> list[int]:
    """The list that receives the length of the context at every step. The package tells the number of steps only, in
    print; on this one model, its forward is wrapped to note the last position."""
    forward, contexts = model.jforward_multilevel, []

    def noting(*arguments: Any, **inputs: Any) -> Any:
        contexts.append(int(inputs["position_ids"][0, -1]) + 1)
        return forward(*arguments, **inputs)

    model.jforward_multilevel = noting
    return contexts


if __name__ == "__main__":
    serve(load)
