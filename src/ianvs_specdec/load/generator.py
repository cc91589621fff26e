"""The load generator: guidellm in a subprocess, which replays a file of arrivals."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError, install_command

LOG_TAIL = 4096
"""Bytes of a log in which its last line is searched."""


def last_line(log: Path) -> str:
    """The last non-empty line of a log."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def processor_seconds(pid: int) -> float | None:
    """Processor time of a process and its running children; None if it has ended."""
    import psutil

    spent = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                spent.append(process.cpu_times())
    return sum(times.user + times.system for times in spent) if spent else None


def end(process: subprocess.Popen[Any], seconds: float) -> None:
    """Stop a process group by SIGTERM, and by SIGKILL after ``seconds``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


STOP_SECONDS = 10.0
REFUSALS = ("429", "503")
"""Statuses of an overloaded server."""
KEY_VARIABLE = "GUIDELLM__SPEC__BACKEND__API_KEY"
"""Passes the key to guidellm without writing it to a file."""
COMPLETED, REFUSED, FAILED, UNREPORTED = "completed", "refused", "failed", "unreported"
"""Outcomes of a request. Unreported: see ``POLL_SECONDS``."""
POLL_SECONDS = 0.5
"""How often guidellm checks whether it has finished. A check between counting and passing on the last answer loses it:
with guidellm's default of 0.1 in one of six rounds."""


@dataclass(frozen=True)
class RequestRecord:
    """Result of request ``index`` of a file of arrivals. Times are seconds since guidellm began."""

    index: int
    due: float
    status: str
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    end: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    text: str | None = None
    error: str = ""


def check_installed() -> None:
    """Raise UserError if guidellm is missing."""
    if importlib.util.find_spec("guidellm") is None:
        raise UserError(f"specdec load needs guidellm, which is not installed: {install_command('load')}")


def configuration(
    url: str, model: str, arrivals: Path, report: Path, scratch: Path, temperature: float, timeout: float
) -> dict[str, Any]:
    """guidellm's scenario: requests are sent at their times, independent of earlier ones."""
    return {
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": url,
                "model": model,
                "http2": False,
                "validate_backend": False,
                "timeout": timeout,
                # With given answer lengths guidellm sets ignore_eos, which not all servers support; None removes it.
                "extras": {"body": {"ignore_eos": None, "temperature": temperature}},
            },
            "profile": {"kind": "replay", "schedule_turn": "timestamp"},
            "data": [{"kind": "json_file", "path": str(arrivals), "load_kwargs": {"cache_dir": str(scratch)}}],
            "outputs": [{"kind": "json", "path": str(report)}],
        }
    }


def environment_of(target: str, key: str) -> dict[str, str]:
    """The environment of guidellm for a server at the URL ``target``."""
    environment = {
        **os.environ,
        # One process sends some hundred requests per second; more would compete with the server.
        "GUIDELLM__MAX_WORKER_PROCESSES": "1",
        "GUIDELLM__MP_POLL_INTERVAL": str(POLL_SECONDS),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if target.partition("://")[2].startswith(("127.0.0.1", "localhost", "[::1]")):
        environment["NO_PROXY"] = environment["no_proxy"] = "*"
    if key:
        environment[KEY_VARIABLE] = key
    return environment


@contextmanager
def generating(config: Mapping[str, Any], folder: Path, log: Path, key: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run guidellm in ``folder``; stop it at the end."""
    scenario = folder / "scenario.json"
    scenario.write_text(json.dumps(config), encoding="utf-8")
    environment = environment_of(str(config["spec"]["backend"]["target"]), key)
    command = [sys.executable, "-m", "guidellm", "run", "--config", str(scenario), "--disable-console"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process, STOP_SECONDS)


def read_report(report: Path, arrivals: Path, log: Path) -> tuple[float, list[RequestRecord]]:
    """Start of guidellm (Unix seconds), and the result of each request. Raises UserError if the report is invalid."""
    try:
        document = json.loads(report.read_text(encoding="utf-8"))
        groups = document["benchmarks"][0]["requests"]
        found = {
            round(float(request["info"]["settings"]["relative_timestamp"]), 6): request
            for group in ("successful", "incomplete", "errored")
            for request in groups.get(group) or ()
        }
        began = {moment: _began(moment, request) for moment, request in found.items()}
    except (OSError, ValueError, LookupError, TypeError) as error:
        words = last_line(log)[:300] if log.exists() else ""
        raise UserError(f"guidellm wrote no valid report ({error!r:.200}); last line of its log: {words}") from error
    begin = next((second for second in began.values() if second is not None), None)
    if begin is None:
        words = last_line(log)[:300] if log.exists() else ""
        raise UserError(f"guidellm sent no request; last line of its log: {words}")
    with arrivals.open(encoding="utf-8") as lines:
        due = [json.loads(line)["relative_timestamp"] for line in lines]
    if unknown := found.keys() - {round(moment, 6) for moment in due}:
        raise UserError(f"guidellm's report is of other arrivals: no request is due at {min(unknown)} s")
    return begin, [_answered(i, moment, found.get(round(moment, 6)), begin) for i, moment in enumerate(due)]


def _began(moment: float, request: Mapping[str, Any]) -> float | None:
    targeted = request["info"]["timings"].get("targeted_start")
    return None if targeted is None else float(targeted) - moment


def _answered(index: int, due: float, request: Mapping[str, Any] | None, begin: float) -> RequestRecord:
    if request is None:
        return RequestRecord(index, due, UNREPORTED, error="missing in guidellm's report")
    times = request["info"]["timings"]

    def seconds(name: str) -> float | None:
        return None if times.get(name) is None else times[name] - begin

    sent, end = seconds("request_start"), seconds("request_end")
    if request["info"]["status"] != COMPLETED:
        error = str(request["info"].get("error") or "cancelled")
        status = REFUSED if any(f"'{code} " in error for code in REFUSALS) else FAILED
        return RequestRecord(index, due, status, sent, end=end, error=error[:300])
    return RequestRecord(
        index,
        due,
        COMPLETED,
        sent,
        seconds("first_token_iteration"),
        seconds("last_token_iteration"),
        end,
        request.get("prompt_tokens"),
        request.get("output_tokens"),
        request.get("output"),
    )
