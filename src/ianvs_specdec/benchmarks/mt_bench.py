"""MT-Bench (Zheng et al. 2023): 80 open-ended questions of two turns in eight categories.

A judge scores the answers (see the data processor's `judge_model`); without one there is no score. With --scorer text,
answers with a reference are scored by chrF.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import File, Row, are_texts, is_id, is_text, records, required
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Part, Source
from ianvs_specdec.common.errors import UserError

NAME = "mt_bench"
REFERENCES = "references"

SOURCE = Source(
    home="github.com/lm-sys/FastChat (fastchat/llm_judge/data/mt_bench)",
    repository="HuggingFaceH4/mt_bench_prompts",
    parts={
        QUESTIONS: Part(names=("question.jsonl", "*train-*.parquet"), hub=("raw/question.jsonl",)),
        REFERENCES: Part(names=("reference_answer/gpt-4.jsonl", "gpt-4.jsonl")),
    },
)

TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "reasoning": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "extraction": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
}
"""Category -> temperature of the original evaluation (temperature_config of FastChat's llm_judge)."""

CATEGORIES = {category: frozenset({category}) for category in TEMPERATURES}


def questions(files: Iterable[File]) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """Place, question and references of every record, with the fields of MT-Bench or of its copy on the hub."""
    for where, row in (record for file in files for record in records(file)):
        identifier = "prompt_id" if "prompt_id" in row else "question_id"
        turns = "prompt" if "prompt" in row else "turns"
        query = {
            "turns": required(row, turns, are_texts, "a list of texts", where),
            "id": str(required(row, identifier, is_id, "an id", where)),
            "group": required(row, "category", is_text, "a text", where),
        }
        references = row.get("reference") or []
        yield where, query, references if isinstance(references, list) else [references]


def read_references(files: Iterable[File]) -> dict[str, list[str]]:
    """Question id -> reference answers by turn, from files of FastChat's ``reference_answer`` folder."""
    references = {}
    for where, row in (record for file in files for record in records(file)):
        identifier = str(required(row, "question_id", is_id, "an id", where))
        choices = required(row, "choices", lambda value: isinstance(value, list) and bool(value), "a list", where)
        if not isinstance(choices[0], dict) or not are_texts(choices[0].get("turns")):
            raise UserError(f"{where}: 'choices' must begin with an object whose 'turns' is a list of texts")
        references[identifier] = choices[0]["turns"]
    return references


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    references = "reference answers, for example reference_answer/gpt-4.jsonl"
    add("--references", type=Path, nargs="+", default=[], metavar="FILE", help=references)
    scorer = "how answers are scored (default judge)"
    add("--scorer", choices=["judge", "text", "none"], default="judge", help=scorer)
    temperature = "sample with the original's temperature for each category, not with the models' own"
    add("--official-temperature", action="store_true", help=temperature)


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    references = read_references(inputs.files(REFERENCES))
    found = list[Row]()
    for where, query, own in questions(inputs.files()):
        if options.official_temperature:
            if query["group"] not in TEMPERATURES:
                raise UserError(f"{where}: MT-Bench has no category {query['group']!r}, so no temperature for it")
            query["temperature"] = TEMPERATURES[query["group"]]
        answer = {"references": references.get(query["id"], []) if references else own}
        found.append({"question": {**query, "scorer": options.scorer}, "answer": answer})
    if references and not references.keys() & {row["question"]["id"] for row in found}:
        raise UserError("the reference answers are for none of the questions: their question_ids differ")
    return found
