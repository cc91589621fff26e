"""GSM8K (Cobbe et al. 2021): word problems of grade-school arithmetic, 1,319 in the test set; the answer is a number.

The prompt is "Q: ... A: Let's think step by step." (Kojima et al. 2022), or with --shots "Question: ... Answer:" after
the first worked solutions of the training set. A solution ends in "#### NUMBER", which the scorer `number` looks for
first. `stop: ["Question:", "Q:"]` in a model's settings stops it before further questions.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ianvs_specdec.benchmarks import shots
from ianvs_specdec.benchmarks.extraction import marked_number
from ianvs_specdec.benchmarks.files import File, Row, is_text, records, required
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Part, Source
from ianvs_specdec.common.errors import UserError

NAME = "gsm8k"

SOURCE = Source(
    home="github.com/openai/grade-school-math",
    repository="openai/gsm8k",
    parts={
        QUESTIONS: Part(names=("main/test-*.parquet", "*test*.jsonl*"), hub=("main/test-00000-of-00001.parquet",)),
        shots.DEV: Part(names=("main/train-*.parquet", "*train*.jsonl*"), hub=("main/train-00000-of-00001.parquet",)),
    },
)

CATEGORIES: dict[str, frozenset[str]] = {}


@dataclass(frozen=True)
class WordProblem:
    """``answer`` is the number that ends the ``solution``, without thousands separators."""

    question: str
    solution: str
    answer: str


def read(file: File) -> Iterator[WordProblem]:
    """The problems of a file with ``question`` and ``answer``. Raises UserError with file and line."""
    for where, row in records(file):
        question = required(row, "question", is_text, "a text", where)
        solution = required(row, "answer", is_text, "a text", where)
        answer = marked_number(solution)
        if answer is None:
            raise UserError(f"{where}: 'answer' must end in a line '#### NUMBER', not in {solution[-40:]!r}")
        yield WordProblem(question, solution, answer)


def prompt(problem: WordProblem, worked: Sequence[WordProblem]) -> str:
    if not worked:
        return f"Q: {problem.question}\nA: Let's think step by step."
    shown = "".join(f"Question: {example.question}\nAnswer: {example.solution}\n\n" for example in worked)
    return f"{shown}Question: {problem.question}\nAnswer:"


add_arguments = shots.add_arguments


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    worked = shots.examples(inputs, options.shots, read, lambda problem: NAME).get(NAME, [])
    found = list[Row]()
    for problem in (problem for file in inputs.files() for problem in read(file)):
        text = shots.prompt_of(worked, options, NAME, functools.partial(prompt, problem))
        query = {"turns": [text], "id": f"{NAME}-{len(found) + 1:04d}", "group": NAME, "scorer": "number"}
        found.append({"question": query, "answer": problem.answer})
    return found
