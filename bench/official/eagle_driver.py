"""eagle-llm 1.2.1 (EAGLE-1, Li et al., arXiv 2401.15077) behind the protocol of ``serve.py``.

Rows: ``{"tree": "static"}``, the package's tree of 25 draft tokens; ``{"tree": "chain", "depth": n}``, a tree of one
branch; ``{"generate": true}``, ``generate`` of the transformers in this environment.

The package is used through ``EaModel.ea_generate``, which yields after every step: unlike ``eagenerate``, whose loop is
the same, it can be ended at the token limit instead of one step beyond it.
"""

from __future__ import annotations

import argparse
import time
from functools import cache
from typing import Any

from serve import Decode, generate, serve, versions


def load(options: argparse.Namespace) -> tuple[dict[str, str], Decode]:
    import torch
    import transformers
    from eagle.model.choices import mc_sim_7b_63
    from eagle.model.ea_model import EaModel
    from eagle.model.utils_c import generate_tree_buffers

    dtype = getattr(torch, options.dtype)
    model = EaModel.from_pretrained(
        base_model_path=str(options.model), ea_model_path=str(options.head), torch_dtype=dtype
    ).eval()

    @cache
    def plain() -> Any:
        auto = transformers.AutoModelForCausalLM
        return auto.from_pretrained(options.model, torch_dtype=dtype, trust_remote_code=False).eval()

    @cache
    def tree_of(shape: str, depth: int) -> tuple[Any, Any]:
        choices = mc_sim_7b_63 if shape == "static" else [[0] * level for level in range(1, depth + 1)]
        return choices, generate_tree_buffers(choices, "cpu")

    def speculate(request: dict[str, Any], shape: str, depth: int) -> dict[str, Any]:
        # ``tree_choices`` is what the target verifies; the head grows the tree of ``init_tree``, which takes no other.
        choices, model.ea_layer.tree_buffer = tree_of(shape, depth)
        model.ea_layer.tree = choices
        prompt, limit = request["prompt"], request["max_new_tokens"]
        ids = torch.tensor([prompt])
        output, emitted = ids, []
        started = time.perf_counter()
        for output in model.ea_generate(ids, temperature=0.0, max_steps=limit, tree_choices=choices):
            emitted.append(output.shape[1] - len(prompt) - sum(emitted))
            if output.shape[1] - len(prompt) >= limit:
                break
        seconds = time.perf_counter() - started
        new = output[0, len(prompt) :].tolist()
        # A step hands out the token it starts from and keeps the one it ends with: as many, decided a step before.
        return {"output": new, "seconds": seconds, "steps": len(emitted), "emitted": emitted, "prefills": 1}

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        row = request["row"]
        if row.get("generate"):
            return generate(plain(), request)
        return speculate(request, row["tree"], row.get("depth", 0))

    return versions("eagle-llm"), decode


if __name__ == "__main__":
    serve(load)
