"""Part ``lossless``: every preset of the path, greedy and drawn, chains and trees, on each target: the share of answers
that are what `specdec decode --method autoregressive` writes. The draft model is the target with noise in its weights.
"""

from __future__ import annotations

import argparse
import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.prompts import read_prompts
from bench.split.scene import MODELS, Client, decoded, noised, relay, verifier
from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Access
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.link.presets import PRESETS

BRANCHES = {"chain": 1, "tree": 3}
SAMPLING = {"greedy": (0.0, 1.0), "coupled": (0.8, 0.9)}
"""Temperature and top-p."""


def add_arguments(add: Any) -> None:
    add("--targets", type=Path, nargs="+", default=[MODELS / "cloud"], metavar="DIR", help="(the embedded cloud)")
    add("--presets", type=lambda text: text.split(","), default=list(PRESETS), metavar="A,B", help="(all)")
    add("--prompts", type=Path, action="append", metavar="FILE", help="repeatable (the embedded sets)")
    add("--limit", type=int, default=2, metavar="N", help="prompts of each file, evenly spread (2)")
    add("--tokens", type=int, default=48, metavar="N", help="of an answer at most (48)")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer

    rows = []
    for place, target in enumerate(options.targets):
        draft = noised(target, folder / f"draft-{place}")
        tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=False)
        files = options.prompts or [
            MODELS.parent / "dataset" / name / "test.jsonl" for name in ("knowledge", "open-ended")
        ]
        prompts = [ids for file in files for ids in read_prompts(file, tokenizer, options.limit, 512)]
        expected = {}
        for name, (temperature, top_p) in SAMPLING.items():
            drawn = ("--temperature", str(temperature), "--top-p", str(top_p), "--set", "acceptance=coupled")
            own = drawn if temperature else ()
            expected[name] = decoded(target, prompts, options.tokens, folder / f"{name}.jsonl", *own)
        with verifier(folder, target, {}) as address:
            for preset in options.presets:
                rows.append(_met(target, draft, preset, address, prompts, expected, options.tokens))
                print(_line(rows[-1]), flush=True)
    return {"rows": rows}


def _met(
    target: Path,
    draft: Path,
    preset: str,
    address: str,
    prompts: list[list[int]],
    expected: dict[str, dict[int, list[int]]],
    tokens: int,
) -> dict[str, Any]:
    row: dict[str, Any] = {"target": target.name, "preset": preset, "cells": {}, "accepted": 0, "drafted": 0}
    with ExitStack() as stack:
        link = stack.enter_context(relay(address, {"preset": preset}))
        for name, branches in BRANCHES.items():
            drafter = drafters.create("draft_model", {"draft": str(draft), "branches": branches})
            client = stack.enter_context(Client(Access(link.address), drafter, 4, "split"))
            for how, number in itertools.product(SAMPLING, range(len(prompts))):
                temperature, top_p = SAMPLING[how]
                sampling = Sampling(max_tokens=tokens, temperature=temperature, top_p=top_p, seed=number)
                answer = client.sampled(prompts[number], sampling)
                same = prompts[number] + answer.token_ids == expected[how][number]
                equal, of = row["cells"].get(f"{how} {name}", (0, 0))
                row["cells"][f"{how} {name}"] = equal + same, of + 1
                row["accepted"] += sum(step.accepted for step in answer.trace.steps)
                row["drafted"] += sum(step.drafted for step in answer.trace.steps)
    return row


def _line(row: dict[str, Any]) -> str:
    cells = "  ".join(f"{name} {equal}/{of}" for name, (equal, of) in row["cells"].items())
    share = row["accepted"] / max(1, row["drafted"])
    return f"{row['target']:<12}{row['preset']:<15}{cells}  of drafted tokens {100 * share:.0f} % accepted"


def table(report: dict[str, Any]) -> str:
    counts = [cell for row in report["rows"] for cell in row["cells"].values()]
    equal, of = sum(equal for equal, _ in counts), sum(of for _, of in counts)
    return f"{equal} of {of} answers are the target's own ({100 * equal / of:.1f} %)"
