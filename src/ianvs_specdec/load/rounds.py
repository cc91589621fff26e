"""A round: one policy at one rate. Its folder is written atomically: ``round.json``, ``requests.jsonl`` (see
``generator.RequestRecord``), ``samples.jsonl``, and guidellm's ``report.json`` and ``guidellm.log``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import replace_folder, temporary_folder
from ianvs_specdec.load.arrivals import LEAD_IN, rate_label
from ianvs_specdec.load.generator import RequestRecord, configuration, generating, processor_seconds, read_report
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.servers import Server

SAMPLES = 120
"""Samples of the server's metrics per round."""
MIN_INTERVAL = 0.25
"""Seconds between two samples: each takes the server some milliseconds."""
OVERHEAD = 300.0
"""Seconds for guidellm to start and to end, in addition to the arrivals and the timeout of the last answer."""


@dataclass(frozen=True)
class Sample:
    """Time (Unix seconds), processor time of the client so far, metrics of our server; None = unknown."""

    at: float
    client: float | None
    server: dict[str, float] | None


class RoundKey(NamedTuple):
    """Identifies a round of a sweep. ``repeat`` counts from 0."""

    rate: float
    policy: str
    repeat: int = 0


@dataclass(frozen=True)
class Round:
    """A finished round. ``begin``: start of guidellm (Unix seconds); ``client_seconds``: its processor time."""

    key: RoundKey
    begin: float
    client_seconds: float
    requests: Sequence[RequestRecord]
    samples: Sequence[Sample]


def folder_of(out: Path, key: RoundKey) -> Path:
    rate, policy, repeat = key
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", policy).strip("-")[:40]
    digest = hashlib.sha256(policy.encode()).hexdigest()[:6]
    return out / "rounds" / f"{rate_label(rate)}-{plain}-{digest}{repeat_suffix(repeat)}"


def repeat_suffix(repeat: int) -> str:
    """End of the file names of a repeat; empty for the first."""
    return f"-{repeat + 1}" if repeat else ""


def run(plan: SweepPlan, server: Server, key: RoundKey, arrivals: Path, out: Path) -> None:
    """Send the requests to the server. Raises UserError and ServerDied; then nothing is written."""
    folder = folder_of(out, key)
    with temporary_folder(folder) as made, tempfile.TemporaryDirectory() as scratch:
        report, log = made / "report.json", made / "guidellm.log"
        own = Path(scratch)
        files = arrivals.resolve(), report.resolve(), own / "cache"
        config = configuration(server.url, server.model, *files, plan.temperature, plan.timeout)
        start = _processor_time()
        with generating(config, own, log, server.key) as process:
            samples = _watch(process, server, plan)
        seconds = _processor_time() - start
        server.check()
        begin, requests = read_report(report, arrivals, log)
        described = {**key._asdict(), "begin": begin, "client_seconds": seconds}
        (made / "requests.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(requests))
        (made / "samples.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(samples))
        (made / "round.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        replace_folder(made, folder)


def read(out: Path, key: RoundKey) -> Round | None:
    """A finished round, None if not finished. Raises UserError if its files were changed."""
    folder = folder_of(out, key)
    if not folder.is_dir():
        return None
    try:
        described = json.loads((folder / "round.json").read_text(encoding="utf-8"))
        requests = msgspec.json.Decoder(RequestRecord).decode_lines((folder / "requests.jsonl").read_bytes())
        samples = msgspec.json.Decoder(Sample).decode_lines((folder / "samples.jsonl").read_bytes())
        return Round(key, float(described["begin"]), float(described["client_seconds"]), requests, samples)
    except (OSError, ValueError, LookupError, TypeError, msgspec.MsgspecError) as error:
        raise UserError(f"{folder} was changed ({error!r:.200}): remove it to repeat the round") from error


def _watch(process: subprocess.Popen[bytes], server: Server, plan: SweepPlan) -> list[Sample]:
    """Sample until guidellm has ended. Raises ServerDied as soon as the server has."""
    interval = max(MIN_INTERVAL, plan.duration / SAMPLES)
    deadline = time.monotonic() + LEAD_IN + plan.duration + plan.timeout + OVERHEAD
    samples = [_sample(server, process.pid)]
    # Other servers have no such metrics.
    has_metrics = samples[0].server is not None
    while True:
        try:
            process.wait(interval)
        except subprocess.TimeoutExpired:
            server.check_process()
            samples.append(_sample(server, process.pid, has_metrics))
            if time.monotonic() > deadline:
                limit = plan.timeout + OVERHEAD
                raise UserError(f"guidellm did not end within {limit:g} s of the last arrival") from None
            continue
        return [*samples, _sample(server, process.pid, has_metrics)]


def _sample(server: Server, pid: int, has_metrics: bool = True) -> Sample:
    return Sample(time.time(), processor_seconds(pid), server.metrics() if has_metrics else None)


def _processor_time() -> float:
    """Processor time of this process, which samples the server, and of ended children."""
    return sum(os.times()[:4])
