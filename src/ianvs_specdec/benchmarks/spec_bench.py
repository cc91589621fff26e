"""Spec-Bench (Xia et al. 2024): 480 questions of six types, to compare the speed of speculative decoding.

Types: multi-turn conversation (the 80 questions of MT-Bench, in its eight categories), translation, summarization, qa,
math_reasoning and rag. The leaderboard has Speedup, Throughput and Mean Accepted Tokens by type (ratios of sums; the
original averages over questions). By default answers are not scored; --scorer text is chrF against the references.
"""

from __future__ import annotations

import argparse
from typing import Any

from ianvs_specdec.benchmarks import mt_bench
from ianvs_specdec.benchmarks.files import Row
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Part, Source

NAME = "spec_bench"

SOURCE = Source(
    home="github.com/hemingkx/Spec-Bench (data/spec_bench/question.jsonl)",
    parts={QUESTIONS: Part(names=("spec_bench/question.jsonl", "question*.jsonl"))},
)

CATEGORIES = {
    "multi-turn conversation": frozenset(mt_bench.CATEGORIES),
    **{name: frozenset({name}) for name in ("translation", "summarization", "qa", "math_reasoning", "rag")},
}
"""Type -> categories."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scorer", choices=["none", "text"], default="none", help="text: chrF against the references")


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    return [
        {"question": {**query, "scorer": options.scorer}, "answer": {"references": _by_turn(references)}}
        for _, query, references in mt_bench.questions(inputs.files())
    ]


def _by_turn(references: list[Any]) -> list[str]:
    """References as texts; a list (the key points of a rag question) is joined."""
    return [", ".join(map(str, one)) if isinstance(one, list) else str(one) for one in references]
