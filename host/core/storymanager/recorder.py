"""Recorder of a test case: its folder with configuration, answers and environment, and its progress line."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import yaml

from core.common.files import append_whole, make_folder, write_atomic, writing
from core.common.utils import get_local_time
from core.storymanager.environment import environment
from core.storymanager.load import LoadMonitor

REFRESH = 0.2
"""Seconds between updates of the progress line."""
LIVE = "{n_fmt}/{total_fmt} queries{postfix}, {remaining} left |{bar}|"
"""Format of the progress line. A narrow terminal cuts its end."""


@dataclass(frozen=True)
class RunInfo:
    """A run. ``runner``: see ``Runner.describe``."""

    job_file: str
    run_id: str
    runner: Callable[[], dict[str, Any]]


class CaseRecorder:
    """Context manager of a test case. It writes answers to ``answers.<process>.partial.jsonl`` as they arrive, shows
    the progress, and finally completes the folder.

    ``details``: the modules' environment details. ``doubt``: why times are doubtful, if so. ``repeat``: from 0.
    """

    def __init__(self, run: RunInfo, folder: str, title: str, repeat: int = 0) -> None:
        self._run, self._folder, self._title, self.repeat = run, folder, title, repeat
        self.rows = self.edge = self.cloud = self.replayed = self.tokens = 0
        self.seconds = 0.0  # total latency of the answers generated in this run
        self._total = 0
        self._started = self._asked = time.perf_counter()
        self._start_time = time.time()
        self.details: dict[str, Any] = {}
        self.doubt = ""
        self._load: dict[str, Any] = {}
        self._monitor = LoadMonitor()
        self._bar: Any = None
        self._stack = ExitStack()
        self._stream: BinaryIO | None = None

    @property
    def partial(self) -> str:
        return os.path.join(self._folder, f"answers{part(self.repeat)}.{os.getpid()}.partial.jsonl")

    def __enter__(self) -> CaseRecorder:
        print(f"{self._title} ...", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end_live()
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
                if not self.rows:
                    os.unlink(self.partial)

    def end_live(self) -> None:
        """Remove the progress line."""
        self._stack.close()
        self._bar = None

    def begin(self, total: int) -> None:
        """Create the folder. ``total``: number of rows."""
        self._total = total
        self._monitor.begin()
        self._asked = time.perf_counter()
        make_folder(self._folder)
        with writing(self.partial):
            self._stream = open(self.partial, "w+b", buffering=0)  # noqa: SIM115
        if sys.stderr.isatty():
            from tqdm import tqdm
            from tqdm.contrib.logging import logging_redirect_tqdm

            tqdm.monitor_interval = 0  # no monitor thread: answers are being timed
            line = {"leave": False, "dynamic_ncols": True, "mininterval": REFRESH, "miniters": 1, "bar_format": LIVE}
            self._bar = self._stack.enter_context(tqdm(total=total, **line))
            # Log lines appear above the progress line (our own logger does this itself).
            self._stack.enter_context(logging_redirect_tqdm())

    def add(self, row: Any) -> None:
        """Write a row's result: ``[is_hard, result, edge, cloud]``, or any value in mode self-design."""
        whole = isinstance(row, (list, tuple)) and len(row) == 4
        is_hard, result, edge, cloud = row if whole else (None, row, None, None)
        hard = bool(is_hard) if is_hard is not None else None
        line = {"index": self.rows, "is_hard": hard, "result": result, "edge": edge, "cloud": cloud}
        assert self._stream is not None
        with writing(self.partial):
            append_whole(self._stream, to_json(line) + b"\n")
        self.rows += 1
        self.cloud += cloud is not None
        self.edge += edge is not None and cloud is None
        self._count(result)
        self.answered(self.rows)
        if self.rows < self._total:
            self._monitor.sample()
        else:
            self._load = self._monitor.end()

    def answered(self, count: int) -> None:
        """Show the number of answered rows, including those that wait for an earlier one."""
        if self._bar is not None and count > self._bar.n:
            self._bar.set_postfix_str(", ".join([*self._speed(), *self._sides()]), refresh=False)
            if not self._bar.update(count - self._bar.n) and count == self._total:
                self._bar.refresh()

    def _count(self, result: Any) -> None:
        if not isinstance(result, dict):
            return
        if result.get("replayed"):
            self.replayed += 1
            return
        usage, perf = result.get("usage"), result.get("perf")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        latency = perf.get("latency") if isinstance(perf, dict) else None
        if isinstance(tokens, int) and isinstance(latency, (int, float)) and math.isfinite(latency):
            self.tokens += tokens
            self.seconds += latency

    def _sides(self) -> list[str]:
        replayed = [f"replayed {self.replayed}"] if self.replayed else []
        return [f"edge {self.edge}, cloud {self.cloud}", *replayed]

    def _speed(self) -> list[str]:
        """Tokens per second of the answers generated in this run, if any."""
        seconds = self.seconds
        if self._run.runner()["concurrency"] > 1:
            # Requests overlap: the sum of their times exceeds the elapsed time.
            seconds = min(seconds, time.perf_counter() - self._asked)
        return [f"{self.tokens / seconds:,.0f} token/s"] if seconds > 0 else []

    def kept(self) -> str:
        """A message about the answers of an unfinished test case."""
        return f"{self.rows} of {self._total} answers are kept in {self.partial}"

    def finish(self, configuration: dict[str, Any], left_out: int) -> None:
        """Complete the folder. ``left_out``: number of malformed rows. Raises WorkspaceError."""
        assert self._stream is not None
        folder, suffix = self._folder, part(self.repeat)
        with writing(self.partial):
            os.fsync(self._stream.fileno())
            self._stream.close()
        write_atomic(
            os.path.join(folder, "config.yaml"), yaml.safe_dump(configuration, sort_keys=False, allow_unicode=True)
        )
        if self.rows > self.replayed:
            self.doubt = self._load.get("doubt", "")
        environment_file = os.path.join(folder, f"environment{suffix}.json")
        found = {**self._environment(configuration, left_out), "load": self._loads(environment_file)}
        write_atomic(environment_file, json.dumps(found, indent=1, default=str) + "\n")
        with writing(folder):
            os.replace(self.partial, os.path.join(folder, f"answers{suffix}.jsonl"))
        # Remove partial files of earlier, killed runs.
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.endswith(".partial.jsonl") and os.path.getmtime(path) < self._start_time:
                with suppress(OSError):
                    os.unlink(path)
        seconds = time.perf_counter() - self._started
        self.end_live()
        queries = "1 query" if self.rows == 1 else f"{self.rows} queries"
        doubtful = f"; doubtful times: {self.doubt}" if self.doubt else ""
        counts = ", ".join([queries, *self._sides(), *self._speed()])
        print(f"{self._title}: {counts}, {seconds:.1f} s{doubtful}", file=sys.stderr, flush=True)

    def _loads(self, path: str) -> list[dict[str, Any]]:
        """The load while the answers were generated: of earlier runs (from the file ``path``), then of this run."""
        found: list[dict[str, Any]] = []
        if self.replayed:
            with suppress(OSError, ValueError, RecursionError, AttributeError), open(path, encoding="utf-8") as stream:
                earlier = json.load(stream).get("load")
                found = earlier if isinstance(earlier, list) else []
        if made := self.rows - self.replayed:
            found.append({"run": self._run.run_id, "answers": made, **self._load})
        return found

    def _environment(self, configuration: dict[str, Any], left_out: int) -> dict[str, Any]:
        run = {
            "run_id": self._run.run_id,
            "finished": get_local_time(),
            "seconds": round(time.perf_counter() - self._started, 3),
            "queries": self.rows,
            "edge": self.edge,
            "cloud": self.cloud,
            "replayed": self.replayed,
            "malformed_rows_left_out": left_out,
            "repeat": self.repeat + 1,
            **self._run.runner(),
        }
        seeds = {
            f"{module['type']}-{name}": value
            for module in configuration["modules"]
            for name, value in module["hyperparameters"].items()
            if "seed" in name
        }
        folder = os.path.dirname(os.path.abspath(self._run.job_file))
        return {"run": run, "seeds": seeds, "modules": self.details, **environment(folder)}


def part(repeat: int) -> str:
    """Suffix of the file names of a repeat, empty for the first."""
    return f".repeat-{repeat + 1}" if repeat else ""


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def to_json(row: dict[str, Any]) -> bytes:
    """A plugin's results as JSON: NaN and infinity as null, NumPy values as plain ones, sets as lists, bytes as base64,
    anything else as ``str``."""
    try:
        return _encode(row)
    except (TypeError, ValueError, RecursionError):  # half of a surrogate pair, or a cycle
        return json.dumps({name: _builtin(value) for name, value in row.items()}).encode()


def _builtin(value: Any) -> Any:
    try:
        return _without_nan(msgspec.to_builtins(value, enc_hook=_plain))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list) else value
