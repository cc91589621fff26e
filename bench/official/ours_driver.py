"""Our engine behind the protocol of ``serve.py``. Rows: ``{"method": name, its options ...}``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from serve import Decode, serve, versions


def load(options: argparse.Namespace) -> tuple[dict[str, str], Decode]:
    import torch

    from ianvs_specdec import drafters, lengths
    from ianvs_specdec.common.types import Sampling
    from ianvs_specdec.engine import decode
    from ianvs_specdec.engine.rounding import near_ties
    from ianvs_specdec.models.loading import CAUSAL
    from ianvs_specdec.models.loading import load as load_model
    from ianvs_specdec.targets.registry import target_of

    what = f"the model {options.model}"
    model = load_model(CAUSAL, Path(options.model), what=what, dtype=getattr(torch, options.dtype))
    target = target_of(model)
    methods: dict[str, Any] = {}

    def method_of(row: dict[str, Any]) -> Any:
        key = repr(row)
        if key not in methods:
            settings = {name: value for name, value in row.items() if name != "method"}
            length = lengths.create(drafters.default_length(row["method"]))
            methods[key] = drafters.create(row["method"], settings), length
        return methods[key]

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        drafter, length = method_of(request["row"])
        sampling = Sampling(max_tokens=request["max_new_tokens"])
        started = time.perf_counter()
        result = decode(target, drafter, length, request["prompt"], sampling, eos_ids=request["eos_ids"])
        seconds = time.perf_counter() - started
        emitted = [step.emitted for step in result.trace.steps]
        return {
            "output": result.token_ids,
            "seconds": seconds,
            "steps": len(emitted),
            "emitted": emitted,
            "prefills": len(result.token_ids) - sum(emitted),
            "near_ties": sorted(near_ties(model, request["prompt"], result.token_ids)),
        }

    return versions("ianvs-specdec"), answer


if __name__ == "__main__":
    serve(load)
