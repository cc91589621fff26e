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

from ianvs_specdec.common.errors import UserError, install

LAST = 4096
"""Bytes at the end of a log in which its last line is looked for."""


def last_words(log: Path) -> str:
    """The last line that is not empty, "" where there is none."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def processor_seconds(pid: int) -> float | None:
    """Processor time of a running process and those below it that still run; None where it has ended."""
    import psutil

    spent = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                spent.append(process.cpu_times())
    return sum(times.user + times.system for times in spent) if spent else None


def end(process: subprocess.Popen[Any], seconds: float) -> None:
    """End the process with its whole group, whose other members would outlive it: by SIGTERM, and by SIGKILL after
    ``seconds``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


STOP_SECONDS = 10.0
REFUSALS = ("429", "503")
"""Statuses by which a server says that it has too much to do."""
KEY_VARIABLE = "GUIDELLM__SPEC__BACKEND__API_KEY"
"""How guidellm is given a key without a file that holds it."""
COMPLETED, REFUSED, FAILED, UNREPORTED = "completed", "refused", "failed", "unreported"
"""What becomes of a request. Unreported: see ``POLL_SECONDS``."""
POLL_SECONDS = 0.5
"""How often guidellm looks whether it has finished. If it looks between the moments when the last answer is counted and
when it is passed on, the report leaves that one out: with its own 0.1 in one round of six."""


@dataclass(frozen=True)
class RequestRecord:
    """What became of one request, ``index`` in its file of arrivals. Times are seconds since guidellm began."""

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
    """Raise UserError where guidellm is missing."""
    if importlib.util.find_spec("guidellm") is None:
        raise UserError(f"the load comes from guidellm, which is not installed: {install('load')}")


def configuration(
    url: str, model: str, arrivals: Path, report: Path, scratch: Path, temperature: float, timeout: float
) -> dict[str, Any]:
    """guidellm's scenario: each request at its own time, whatever became of those before it."""
    return {
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": url,
                "model": model,
                "http2": False,
                "validate_backend": False,
                "timeout": timeout,
                # With a length for each answer guidellm asks the server to go on behind the end, which not every server
                # can; nothing takes that back but a value that is left out.
                "extras": {"body": {"ignore_eos": None, "temperature": temperature}},
            },
            "profile": {"kind": "replay", "schedule_turn": "timestamp"},
            "data": [{"kind": "json_file", "path": str(arrivals), "load_kwargs": {"cache_dir": str(scratch)}}],
            "outputs": [{"kind": "json", "path": str(report)}],
        }
    }


def environment_of(target: str, key: str) -> dict[str, str]:
    """The variables with which guidellm is started, for a server at the URL ``target``."""
    environment = {
        **os.environ,
        # One sending process: it is enough for some hundred requests a second, and more would take the server's
        # processor.
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
    """guidellm at work, ended at the end. ``folder`` is for its own files."""
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
    """When guidellm began (Unix seconds), and what became of every request. Raises UserError without a report of these
    arrivals."""
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
        words = last_words(log) if log.exists() else ""
        raise UserError(
            f"guidellm left no report that can be read ({error!r:.200}); it last said: {words[:300]}"
        ) from error
    begin = next((second for second in began.values() if second is not None), None)
    if begin is None:
        raise UserError(f"guidellm sent no request; it last said: {last_words(log)[:300] if log.exists() else ''}")
    with arrivals.open(encoding="utf-8") as lines:
        due = [json.loads(line)["relative_timestamp"] for line in lines]
    if unknown := found.keys() - {round(moment, 6) for moment in due}:
        raise UserError(f"guidellm's report is of other arrivals: none comes at {min(unknown)} s")
    return begin, [_answered(i, moment, found.get(round(moment, 6)), begin) for i, moment in enumerate(due)]


def _began(moment: float, request: Mapping[str, Any]) -> float | None:
    targeted = request["info"]["timings"].get("targeted_start")
    return None if targeted is None else float(targeted) - moment


def _answered(index: int, due: float, request: Mapping[str, Any] | None, begin: float) -> RequestRecord:
    if request is None:
        return RequestRecord(index, due, UNREPORTED, error="guidellm's report leaves it out")
    times = request["info"]["timings"]

    def seconds(name: str) -> float | None:
        return None if times.get(name) is None else times[name] - begin

    sent, end = seconds("request_start"), seconds("request_end")
    if request["info"]["status"] != COMPLETED:
        error = str(request["info"].get("error") or "it was given up")
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
