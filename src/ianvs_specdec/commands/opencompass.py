"""``specdec data opencompass``: write a job's answers as predictions for OpenCompass' ``--mode eval``.

One file per test case and dataset: OUT/predictions/MODEL/DATASET.json, MODEL being the test case's algorithm and id. A
file is an object with keys "0", "1", ..., the number of the question in OpenCompass' test set, and values with
`origin_prompt`, `prediction` and `gold`, which are lists for questions with several turns. With a config whose model
has the abbr MODEL:

    opencompass CONFIG --work-dir PARENT-OF-OUT --reuse NAME-OF-OUT --mode eval
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks import cmmlu, gsm8k, humaneval, mmlu
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.types import Query, messages_of
from ianvs_specdec.workspace.cases import Case, Dataset, Workspace, read_workspace

ROLES = {"system": "SYSTEM", "user": "HUMAN", "assistant": "BOT"}
_MMLU = frozenset[str]().union(*mmlu.CATEGORIES.values())
_NUMBER = re.compile(r"[-/](\d+)$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workspace", type=Path, required=True, metavar="DIR", help="a job's workspace or folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write predictions/ into")


def run(options: argparse.Namespace) -> int:
    workspace = read_workspace(options.workspace)
    several_jobs = len({case.job for case in workspace.cases}) > 1
    written = 0
    for case in workspace.cases:
        if case.folder is None:
            continue
        model = "-".join([*([case.job] if several_jobs else []), case.algorithm, case.id])
        for name, predictions in sorted(predictions_of(case, _dataset(workspace, case)).items()):
            path = options.out / "predictions" / model / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(predictions, ensure_ascii=False, indent=4) + "\n")
            written += 1
            print(f"{path}: {len(predictions)} questions{_gaps(predictions)}")
    if not written:
        notes = "; ".join(note for case in workspace.cases for note in case.notes)
        raise UserError(f"{options.workspace} holds no answers{f': {notes}' if notes else ''}")
    return 0


def predictions_of(case: Case, dataset: Dataset) -> dict[str, dict[str, Any]]:
    """OpenCompass' name of the dataset -> content of its file. Failed queries have the prediction ""."""
    found: dict[str, dict[str, Any]] = {}
    for index, (_, result, _, _) in sorted(case.answers().items()):
        if index >= len(dataset.queries):
            raise UserError(f"row {index + 1} was answered, but the data file now has {len(dataset.queries)} rows")
        query, gold = dataset.queries[index], dataset.golds[index]
        file = found.setdefault(abbreviation(query.group), {})
        number = _NUMBER.search(query.id)
        # Our ids count from 1, HumanEval's from 0.
        key = str(int(number.group(1)) - (query.group != humaneval.NAME)) if number else str(len(file))
        if key in file:
            raise UserError(f"{case.algorithm}: two questions have the number of {query.id!r}: ids must differ")
        file[key] = prediction(query, gold, [turn["completion"] for turn in result.get("turns", ())])
    return {name: dict(sorted(file.items(), key=lambda item: int(item[0]))) for name, file in found.items()}


def abbreviation(group: str) -> str:
    """OpenCompass' name of a group's dataset, or one derived from the group."""
    if group in _MMLU:
        return f"lukaemon_mmlu_{group}"
    if group.startswith(cmmlu.PREFIX):
        return f"cmmlu-{group.removeprefix(cmmlu.PREFIX)}"
    known = {gsm8k.NAME: "gsm8k", humaneval.NAME: "openai_humaneval"}
    return known.get(group) or re.sub(r"[^\w.-]+", "_", group).strip("._") or "data"


def prediction(query: Query, gold: Any, answers: list[str]) -> dict[str, Any]:
    """An entry of a file; there may be fewer ``answers`` than turns."""
    given = [*answers, *[""] * (len(query.turns) - len(answers))]
    chats = [messages_of(query, given[:turn]) for turn in range(len(query.turns))]
    prompts = [[{"role": ROLES[message["role"]], "prompt": message["content"]} for message in chat] for chat in chats]
    if len(query.turns) == 1:
        own = dict(gold) if isinstance(gold, Mapping) else str(gold)
        return {"origin_prompt": prompts[0], "prediction": given[0], "gold": own}
    references = [*references_of(gold), *[""] * len(query.turns)]
    return {"origin_prompt": prompts, "prediction": given, "gold": references[: len(query.turns)]}


def _dataset(workspace: Workspace, case: Case) -> Dataset:
    url = str(case.config.get("dataset") or "")
    dataset = workspace.dataset(url)
    if dataset is None:
        raise UserError(
            f"the data file {url or '(not in the configuration)'} of {case.algorithm} is not there: run this in the "
            "working directory of ianvs"
        )
    return dataset


def _gaps(predictions: dict[str, Any]) -> str:
    """Missing answers and questions, as text."""
    texts = [[one] if isinstance(one := entry["prediction"], str) else one for entry in predictions.values()]
    failed = sum("" in answers for answers in texts)
    missing = next((number for number in range(len(predictions)) if str(number) not in predictions), None)
    return (f", {failed} without an answer" if failed else "") + (
        "" if missing is None else f" (number {missing} is missing: OpenCompass scores whole sets only)"
    )
