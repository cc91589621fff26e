"""Folders of test cases under upstream Ianvs, which writes only a leaderboard.

The first metric of a test case, which gets all its results, writes the files for a report; the report assigns the
folders to the rows of the leaderboard. ``<workspace>/<job>/<algorithm>/upstream-<time>-<id>/`` has ``config.yaml`` and
``answers.jsonl`` in the form of our host, ``<workspace>/<job>/asked-<digest>.jsonl`` the rows.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ianvs_specdec.benchmarks.scorers import CHOICES
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.records.identity import digest
from ianvs_specdec.records.response import Response

log = logging.getLogger(__name__)

HOST = "upstream Ianvs"
TIME = "%Y-%m-%d %H:%M:%S"
"""Format of the column time, in local time."""
MODULES = ("dataset_processor", "edgemodel", "cloudmodel", "hard_example_mining")

_last: weakref.ref[Response] | None = None


def keep(y_true: Sequence[Any], y_pred: Sequence[Any]) -> None:
    """Write the folder of the test case, once. Does nothing under our host, outside a run, or for other plugins. A
    failed write is a warning."""
    global _last
    place = os.environ.get("RESULT_SAVED_URL")
    if os.environ.get("IANVS_RUN_ID") or not place or not len(y_pred):
        return
    first = y_pred[0][1] if isinstance(y_pred[0], (list, tuple)) and len(y_pred[0]) == 4 else None
    if not isinstance(first, Response) or not isinstance(first.row, Mapping):
        return
    if _last is not None and _last() is first:
        return
    _last = weakref.ref(first)
    try:
        _write(Path(place), y_true, y_pred)
    except OSError as error:
        log.warning("the answers of this test case are not stored for a report: %s", error)


def _write(algorithm: Path, y_true: Sequence[Any], y_pred: Sequence[Any]) -> None:
    rows = [
        # The letter of an option refers to the question in the request, not in the data file.
        {"question": of["query"], "answer": _plain(of["gold"] if result["scorer"] in CHOICES else gold)}
        for (_, result, *_), gold in zip(y_pred, y_true, strict=True)
        if (of := result.row)
    ]
    name = f"asked-{digest(rows)[:16]}.jsonl"
    if not (algorithm.parent / name).exists():
        write_atomically(algorithm.parent / name, "".join(_line(row) for row in rows))
    # The same clock as Ianvs's rows: time.time() may be a tick ahead, and the folder would seem later.
    now = time.localtime()
    stamp = f"{time.strftime('%Y%m%dT%H%M%S', now)}.{time.time_ns()}"
    folder = algorithm / f"upstream-{stamp}-{uuid.uuid4().hex[:8]}"
    unfinished = algorithm / f".{folder.name}.tmp"
    unfinished.mkdir(parents=True)
    try:
        with (unfinished / "answers.jsonl").open("w", encoding="utf-8") as file:
            for index, (hard, result, edge, cloud) in enumerate(y_pred):
                row = {"index": index, "is_hard": bool(hard), "result": result, "edge": edge, "cloud": cloud}
                file.write(_line(row))
        config = {
            "algorithm": algorithm.name,
            "host": HOST,
            "finished": time.strftime(TIME, now),
            "dataset": name,
            "models": _models(y_pred),
        }
        (unfinished / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _models(y_pred: Sequence[Any]) -> dict[str, str]:
    """The names of the models that answered, by side."""
    found: dict[str, str] = {}
    for row in y_pred:
        for response in row[1:]:
            if response is not None and response.get("side"):
                found.setdefault(str(response["side"]), str(response.get("model")))
    return found


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def folders_of(rows: Sequence[Mapping[str, str]], configs: Mapping[Path, Mapping[str, Any]]) -> dict[int, Path]:
    """The folder of each row, by index (``configs``: ``config.yaml`` of each folder). A row is written right after its
    folder: it is the latest one before the row, with the same models."""
    left = sorted(configs, key=lambda folder: (configs[folder]["finished"], folder.name), reverse=True)
    found: dict[int, Path] = {}
    for place in sorted(range(len(rows)), key=lambda place: _order(rows[place]), reverse=True):
        row = rows[place]
        for folder in left:
            config = configs[folder]
            if config["algorithm"] == row.get("algorithm") and config["finished"] <= row.get("time", ""):
                if all(row.get(f"{side}model-model", name) == name for side, name in config["models"].items()):
                    found[place] = folder
                    left.remove(folder)
                break
    return found


def _order(row: Mapping[str, str]) -> tuple[str, int]:
    """Time of a row, and the time in its UUID for rows of the same second."""
    try:
        number = uuid.UUID(Path(row.get("url", "")).name).time
    except ValueError:
        number = 0
    return row.get("time", ""), number


def config_of(row: Mapping[str, str], folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a test case in the form of our host, from the leaderboard's columns."""
    modules = [
        {
            "type": kind,
            "name": row[kind],
            "hyperparameters": {
                column.removeprefix(f"{kind}-"): _value(cell)
                for column, cell in row.items()
                if column.startswith(f"{kind}-") and cell and " object at 0x" not in cell
            },
        }
        for kind in MODULES
        if row.get(kind)
    ]
    return {**config, "dataset": str(folder.parents[1] / str(config["dataset"])), "modules": modules}


def _value(cell: str) -> Any:
    """The YAML value of a cell."""
    try:
        return yaml.safe_load(cell)
    except yaml.YAMLError:
        return cell
