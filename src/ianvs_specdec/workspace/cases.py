"""What a run has left in its workspace, read as it is: damaged or missing parts become notes, never a crash."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ianvs_specdec.benchmarks.rows import LINE, normalize_row, query_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.cells import unescaped
from ianvs_specdec.common.types import Query
from ianvs_specdec.records.response import Response, check_response, edge_answer_of
from ianvs_specdec.workspace import upstream
from ianvs_specdec.workspace.journal_reader import JournalReader

ANSWERS, CONFIG, ENVIRONMENT, REPEATS = "answers.jsonl", "config.yaml", "environment.json", "repeats.csv"
RANKS = ("all_rank.csv", "selected_rank.csv")

Row = tuple[bool, Response, Response | None, Response | None]
"""``is_hard``, the result, the edge's response, the cloud's response."""


@dataclass
class Case:
    """One test case: its row on the leaderboard (texts as in the file, empty if it is not on it) and its folder."""

    job: str
    algorithm: str
    id: str
    folder: Path | None
    rank: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    repeats: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def module(self, kind: str) -> dict[str, Any]:
        """Name and hyperparameters of the module of this type; empty if there is none or the configuration is lost."""
        for module in self.config.get("modules") or ():
            if isinstance(module, Mapping) and module.get("type") == kind:
                return dict(module)
        return {}

    def hyperparameters(self, side: str) -> dict[str, Any]:
        """Those of the edge or the cloud model; empty where there is none."""
        return dict(self.module(f"{side}model").get("hyperparameters") or {})

    def answers(self) -> dict[int, Row]:
        """Row number -> results. Lines that are damaged, or not of our models, are left out and noted."""
        found: dict[int, Row] = {}
        if self.folder is None:
            return found
        path, damaged, foreign = self.folder / ANSWERS, [], 0
        if not path.is_file():
            unfinished = any(self.folder.glob("answers.*.partial.jsonl"))
            self.notes.append("unfinished: the run of this test case has not ended" if unfinished else f"no {ANSWERS}")
            return found
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    index, row = _row(json.loads(line, parse_constant=_refused))
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                    damaged.append(number)
                    continue
                if row is None:
                    foreign += 1
                else:
                    found[index] = row
        if damaged:
            more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
            shown = ", ".join(map(str, damaged[:5]))
            self.notes.append(f"damaged lines of {ANSWERS} are left out: {shown}{more}")
        if foreign:
            self.notes.append(f"{ANSWERS}: {foreign} results have another form than our models' and are left out")
        return found


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _row(line: Mapping[str, Any]) -> tuple[int, Row | None]:
    """The number and the results of a line; no results where they are another plugin's."""
    result, edge, cloud = line["result"], line.get("edge"), line.get("cloud")
    if isinstance(result, dict):
        edge = edge_answer_of(result, edge)
    if not isinstance(result, dict) or not isinstance(result.get("turns", [] if result.get("error") else None), list):
        return int(line["index"]), None
    # One object where the host wrote the same twice: half the memory.
    sides = [side if isinstance(side, dict) else None for side in (edge, cloud)]
    result = next((side for side in sides if side == result), result)
    if all(side is not result for side in sides):
        check_response(result)
    for side in sides:
        if side is not None:
            check_response(side, of_side=True)
    edge, cloud = (None if side is None else Response(side) for side in sides)
    return int(line["index"]), (bool(line.get("is_hard")), Response(result), edge, cloud)


@dataclass
class Dataset:
    """The rows that were asked: question and answer of each, in the order of the file."""

    queries: list[Query]
    golds: list[Any]


@dataclass
class Workspace:
    """All test cases below a folder. ``headers``: the columns of each job's leaderboard, the selected ones apart."""

    folder: Path
    cases: list[Case]
    jobs: dict[str, Path]
    headers: dict[str, list[str]]
    selected: dict[str, list[str]]
    notes: list[str]
    _datasets: dict[str, Dataset | None] = field(default_factory=dict)
    _kept: dict[str, JournalReader] = field(default_factory=dict)

    def dataset(self, url: str) -> Dataset | None:
        """The data file of a configuration, looked for where Ianvs was run; None, with a note, if it is not there."""
        if url not in self._datasets:
            self._datasets[url] = self._read_dataset(url)
        return self._datasets[url]

    def find(self, url: str) -> Path | None:
        """A path as a configuration has it: absolute, or relative to here or to a folder around the workspace."""
        for base in (Path(), *self.folder.resolve().parents, self.folder):
            try:
                if (base / url).exists():
                    return base / url
            except OSError:
                return None
        return None

    def journal(self, job: str) -> JournalReader:
        """The journal of the job of this name."""
        if job not in self._kept:
            self._kept[job] = JournalReader(self.jobs[job])
        return self._kept[job]

    def _read_dataset(self, url: str) -> Dataset | None:
        path = self.find(url) if url else None
        if path is not None and path.suffix == ".json":
            path = path.parent / "data.jsonl"
        if path is None or not path.is_file():
            self.notes.append(
                f"the data file {url or '(not in the configuration)'} is not there: questions and references are not "
                "shown. Make the report in the folder in which ianvs was run."
            )
            return None
        queries: list[Query] = []
        golds: list[Any] = []
        try:
            with path.open(encoding="utf-8-sig") as file:
                for line in file:
                    row = _question(line, len(queries))
                    if row is not None:
                        queries.append(row[0])
                        golds.append(row[1])
        except (OSError, UnicodeDecodeError) as error:
            self.notes.append(f"the data file {url} cannot be read: {error}")
            return None
        return Dataset(queries, golds)


def _question(line: str, index: int) -> tuple[Query, Any] | None:
    """A row of a data file; None for one that Ianvs, too, leaves out."""
    try:
        row = json.loads(line)
        question, answer = normalize_row(row) if len(row.keys() & LINE) > 1 else (None, None)
        return query_of(question, answer, index), answer
    except (ValueError, TypeError, AttributeError, RecursionError, UserError):
        return None


def read_workspace(folder: Path) -> Workspace:
    """Every job below ``folder``, or the job that it is. UserError if there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the workspace of a job, or a job's folder in it")
    jobs = [folder] if _is_job(folder) else sorted(child for child in folder.iterdir() if _is_job(child))
    if not jobs:
        raise UserError(
            f"{folder} holds no results of Ianvs (no rank/all_rank.csv, no ALGORITHM/ID/answers.jsonl): give the "
            "folder that the job file names under workspace, or the job's folder in it"
        )
    workspace = Workspace(folder, [], {job.resolve().name: job for job in jobs}, {}, {}, [])
    for job in jobs:
        _read_job(job, workspace)
    if not workspace.cases:
        raise UserError(f"{folder} holds no finished test case yet: run the job first")
    return workspace


def _is_job(folder: Path) -> bool:
    return folder.is_dir() and (
        any((folder / "rank" / name).is_file() for name in RANKS) or next(_case_folders(folder), None) is not None
    )


def _case_folders(job: Path) -> Iterator[Path]:
    for algorithm in sorted(path for path in job.iterdir() if path.is_dir() and path.name != "rank"):
        for case in sorted(path for path in algorithm.iterdir() if path.is_dir()):
            if any((case / name).is_file() for name in (ANSWERS, CONFIG)):
                yield case


def _read_job(job: Path, workspace: Workspace) -> None:
    name, ranks = job.resolve().name, {}
    for file in RANKS:
        header, rows = _read_csv(job / "rank" / file, workspace.notes)
        # The selected one may hold any columns (selected_output_columns of the job).
        if header and not {"rank", *(["algorithm"] if file == RANKS[0] else [])} <= set(header):
            workspace.notes.append(f"{job / 'rank' / file} is not a leaderboard of Ianvs and is left out")
            continue
        ranks[file] = [dict(zip(header, row, strict=False)) for row in rows]
        (workspace.headers if file == RANKS[0] else workspace.selected)[name] = header
    selected = [row for row in ranks.get(RANKS[1], []) if "algorithm" in row]
    on_board = ranks.get(RANKS[0]) or selected
    workspace.headers[name] = workspace.headers.get(name) or workspace.selected.get(name) or []
    folders = {(case.parent.name, case.name): case for case in _case_folders(job)}
    theirs = _of_upstream(folders)
    found = upstream.folders_of(on_board, theirs)
    for number, row in enumerate(on_board):
        place = Path(row.get("url") or "").parts[-2:]
        key = (place[0], place[1]) if len(place) == 2 else (row["algorithm"], row["rank"])
        case = _case(name, *key, folders.pop(key, None) or found.get(number), row)
        if number in found:
            case.config = upstream.config_of(row, found[number], theirs[found[number]])
            folders.pop((found[number].parent.name, found[number].name), None)
        workspace.cases.append(case)
    if found:
        workspace.notes.append(f"{name} was run under {upstream.HOST}, which tells nothing of the environment")
    for key, folder in folders.items():
        case = _case(name, *key, folder, {})
        if on_board:
            case.notes.append("not on the leaderboard")
        workspace.cases.append(case)


def _of_upstream(folders: Mapping[tuple[str, str], Path]) -> dict[Path, dict[str, Any]]:
    """The folders that our plugin wrote under upstream Ianvs, with what their ``config.yaml`` says."""
    found: dict[Path, dict[str, Any]] = {}
    for folder in folders.values():
        if folder.name.startswith("upstream-"):
            config = _read_mapping(folder / CONFIG, yaml.safe_load, [])
            if all(isinstance(config.get(key), str) for key in ("algorithm", "finished", "dataset")) and isinstance(
                config.get("models"), dict
            ):
                found[folder] = config
    return found


def _case(job: str, algorithm: str, identifier: str, folder: Path | None, rank: dict[str, str]) -> Case:
    case = Case(job, algorithm, identifier, folder, rank)
    if folder is None:
        case.notes.append("its folder is not in the workspace: the leaderboard's row is all there is")
        return case
    case.config = _read_mapping(folder / CONFIG, yaml.safe_load, case.notes)
    if folder.name.startswith("upstream-"):
        return case
    case.environment = _read_mapping(folder / ENVIRONMENT, _environment, case.notes)
    if (folder / REPEATS).is_file():
        header, rows = _read_csv(folder / REPEATS, case.notes)
        case.repeats = [header, *rows]
    return case


def _environment(text: str) -> Any:
    """Raises ValueError where anything that is read of it is not what it should be."""
    value = json.loads(text)
    # No page can hold a number without an end.
    json.dumps(value, allow_nan=False)
    given = value if isinstance(value, dict) else {}
    if not isinstance(given.get("run") or {}, dict) or not isinstance(given.get("load") or [], list):
        raise ValueError("no environment")
    return value


def _read_mapping(path: Path, parse: Any, notes: list[str]) -> dict[str, Any]:
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"no {path.name}")
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        notes.append(f"{path.name} is damaged")
        return {}
    return value if isinstance(value, dict) else {}


def _read_csv(path: Path, notes: list[str]) -> tuple[list[str], list[list[str]]]:
    """Header and rows; both empty without the file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [list(map(unescaped, row)) for row in csv.reader(file) if row]
    except FileNotFoundError:
        return [], []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        notes.append(f"{path} cannot be read: {error}")
        return [], []
    return (rows[0], rows[1:]) if rows else ([], [])
