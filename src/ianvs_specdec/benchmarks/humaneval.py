"""HumanEval (Chen et al. 2021): 164 Python functions to write from signature and docstring, judged by unit tests.

Chat models get an instruction to write the whole function; --raw is the bare start of the file, for base models. The
tests run only with `run_code` of the data processor: see the scorer `code`.
"""

from __future__ import annotations

import argparse

from ianvs_specdec.benchmarks.code import FIELDS
from ianvs_specdec.benchmarks.files import Row, is_text, records, required
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Part, Source

NAME = "humaneval"

SOURCE = Source(
    home="github.com/openai/human-eval",
    repository="openai/openai_humaneval",
    parts={
        QUESTIONS: Part(
            names=("openai_humaneval/test-*.parquet", "HumanEval.jsonl*", "*test*.parquet", "*test*.jsonl*"),
            hub=("openai_humaneval/test-00000-of-00001.parquet",),
        )
    },
)

CATEGORIES: dict[str, frozenset[str]] = {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="the bare code as the prompt, without an instruction")


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    found = list[Row]()
    for where, row in (record for file in inputs.files() for record in records(file)):
        answer = {field: required(row, field, is_text, "a text", where) for field in FIELDS}
        query = {
            "turns": [answer["prompt"] if options.raw else instruction(answer["prompt"])],
            "id": required(row, "task_id", is_text, "a text", where),
            "group": NAME,
            "scorer": "code",
        }
        found.append({"question": query, "answer": answer})
    return found


def instruction(code: str) -> str:
    return f"Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{code}```"
