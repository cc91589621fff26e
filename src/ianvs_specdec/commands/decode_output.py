"""What ``specdec decode`` writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ianvs_specdec.common.storage.atomic import replacing

if TYPE_CHECKING:
    from ianvs_specdec.engine import Decoded, TokenTree


def row_of(
    prompt_ids: list[int], decoded: Decoded, trees: list[TokenTree] | None, tokenizer: Any, task: str
) -> dict[str, Any]:
    steps = [msgspec.structs.asdict(step) for step in decoded.trace.steps]
    for step, tree in zip(steps, trees or (), strict=False):
        step.update(tree=tree.tokens, depth=tree.depths, **(tree.notes or {}))
    return {
        "prompt": prompt_ids,
        "output": [*prompt_ids, *decoded.token_ids],
        "text": None if tokenizer is None else tokenizer.decode(decoded.token_ids, skip_special_tokens=True),
        "steps": steps,
        "ttft": decoded.trace.ttft,
        "latency": decoded.trace.latency,
        "finish_reason": decoded.finish_reason,
        "near_ties": [list(tie) for tie in decoded.trace.near_ties],
        **({"task": task} if task else {}),
    }


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def summarise(results: Sequence[Decoded]) -> None:
    tokens = sum(len(result.token_ids) for result in results)
    seconds = sum(result.trace.latency or 0.0 for result in results)
    steps = [step for result in results for step in result.trace.steps]
    tau = f"{sum(step.emitted for step in steps) / len(steps):.3f}" if steps else "-"
    rate = f"{tokens / seconds:.1f}" if seconds else "-"
    print(f"{len(results)} prompts, {tokens} tokens, tau {tau}, {rate} token/s", file=sys.stderr)
