"""MT-Bench (Zheng et al. 2023): 80 open-ended questions of two turns in eight categories.

The questions have no right answer: by default no score is given (scorer `none`), only what does not depend on one. With
`--scorer text` the answers that have a reference are scored by chrF against it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ianvs_specdec.benchmarks.files import (
    are_texts,
    is_text,
    positive,
    read_json_lines,
    required,
    spread,
    write_rows,
)
from ianvs_specdec.errors import UserError


def read_references(path: Path) -> dict[str, list[str]]:
    """Question id -> reference answers by turn, from a file of FastChat's ``reference_answer`` folder."""
    references = {}
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        identifier = str(required(row, "question_id", lambda value: isinstance(value, (int, str)), "an id", where))
        choices = required(row, "choices", lambda value: isinstance(value, list) and bool(value), "a list", where)
        if not isinstance(choices[0], dict) or not are_texts(choices[0].get("turns")):
            raise UserError(f"{where}: 'choices' must begin with an object whose 'turns' is a list of texts")
        references[identifier] = choices[0]["turns"]
    return references


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--questions", type=Path, required=True, help="question.jsonl")
    parser.add_argument("--references", type=Path, help="reference answers, for example reference_answer/gpt-4.jsonl")
    parser.add_argument("--scorer", choices=["none", "text"], default="none", help="text: chrF against the references")
    parser.add_argument("--limit", type=positive, metavar="N", help="take N questions, spread evenly over the file")
    parser.add_argument("--out", type=Path, required=True, help="data file to write (.jsonl)")


def run(options: argparse.Namespace) -> int:
    references = read_references(options.references) if options.references else {}
    rows = []
    for number, row in read_json_lines(options.questions):
        where = f"{options.questions}:{number}"
        identifier = str(required(row, "question_id", lambda value: isinstance(value, (int, str)), "an id", where))
        query = {
            "turns": required(row, "turns", are_texts, "a list of texts", where),
            "id": identifier,
            "group": required(row, "category", is_text, "a text", where),
            "scorer": options.scorer,
        }
        rows.append({"question": query, "answer": {"references": references.get(identifier, [])}})
    unused = references.keys() - {row["question"]["id"] for row in rows}
    if references and len(unused) == len(references):
        raise UserError(f"{options.references} holds no reference for any question of {options.questions}")
    chosen = spread(rows, options.limit)
    write_rows(options.out, chosen)
    referenced = sum(bool(row["answer"]["references"]) for row in chosen)
    print(f"{options.out}: {len(chosen)} of {len(rows)} questions, {referenced} with references")
    return 0
