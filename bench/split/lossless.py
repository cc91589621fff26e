"""Part ``lossless``: for every path preset, greedy and sampled, chains and trees, on each target: the share of answers
that equal those of `specdec decode --method autoregressive`. The draft model is the target with noise in its weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.command import SETS
from bench.options import read_rows
from bench.split.scene import MODELS, Truth, decode, edge, truth_of, verifier
from ianvs_specdec.net.link.path import PRESETS

Row = dict[str, Any]
BRANCHES = {"chain": 1, "tree": 3}
SAMPLING: dict[str, dict[str, float]] = {"greedy": {}, "coupled": {"temperature": 0.8, "top_p": 0.9}}
HEADS = ("target", "preset", *(f"{how} {name}" for name in BRANCHES for how in SAMPLING), "drafts accepted")
PROMPTS, TOKENS = 2, 48
"""Prompts per embedded set, and maximum tokens of an answer."""
NOISE = 0.3
"""Relative to a weight's standard deviation. About half of the drafts of the embedded cloud model are then right."""


def add_arguments(add: Any) -> None:
    add("--targets", type=Path, nargs="+", default=[MODELS / "cloud"], metavar="DIR", help="(the embedded cloud)")


def measure(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    prompts = [text for file in SETS for text, _ in read_rows(file, PROMPTS)]
    for number, target in enumerate(options.targets):
        draft = noised(target, folder / f"draft-{number}")
        truths = {
            how: truth_of(target, prompts, TOKENS, folder / f"{how}-{number}.jsonl", *_arguments(sampling))
            for how, sampling in SAMPLING.items()
        }
        with verifier(folder / "verifier.yaml", target, {}) as address:
            for preset in PRESETS:
                yield _compared(target, draft, preset, address, truths)


def noised(model: Path, folder: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, trust_remote_code=False)
    with torch.no_grad():
        for weight in loaded.parameters():
            if weight.dim() > 1:
                weight.add_(NOISE * weight.std() * torch.randn_like(weight))
    loaded.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model, trust_remote_code=False).save_pretrained(folder)
    return folder


def _arguments(sampling: dict[str, float]) -> list[str]:
    named = [word for name, value in sampling.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*named, "--set", "acceptance=coupled"] if named else []


def _compared(target: Path, draft: Path, preset: str, address: str, truths: dict[str, Truth]) -> Row:
    row: Row = {"target": target.name, "preset": preset, "cells": {}, "accepted": 0, "drafted": 0}
    for name, branches in BRANCHES.items():
        own = {"method": "draft_model", "draft": str(draft), "branches": branches, "length": "fixed:4", "mode": "split"}
        with edge(target, address, own, preset, acceptance="coupled") as llm:
            for how, truth in truths.items():
                answers = [
                    decode(llm, question, TOKENS, seed=seed, **SAMPLING[how])
                    for seed, question in enumerate(truth.questions)
                ]
                pairs = zip(answers, truth.answers, strict=True)
                equal = sum(answer.token_ids == expected for answer, expected in pairs)
                row["cells"][f"{how} {name}"] = equal, len(answers)
                steps = [step for answer in answers for step in answer.trace.steps]
                row["accepted"] += sum(step.accepted for step in steps)
                row["drafted"] += sum(step.drafted for step in steps)
    return row


def cells(row: Row) -> list[str]:
    shares = [f"{equal}/{of}" for equal, of in row["cells"].values()]
    return [row["target"], row["preset"], *shares, f"{row['accepted'] / max(1, row['drafted']):.0%}"]


def summary(rows: Sequence[Row]) -> str:
    equal, of = (sum(counts) for counts in zip(*(cell for row in rows for cell in row["cells"].values()), strict=True))
    return f"{equal} of {of} answers equal the target's ({100 * equal / of:.1f} %)"
