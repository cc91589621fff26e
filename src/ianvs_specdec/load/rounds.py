"""One round: a policy at a rate. Its folder appears whole or not at all, with ``round.json``, ``requests.jsonl`` (see
``generator.RequestRecord``), ``samples.jsonl``, and guidellm's own ``report.json`` and ``guidellm.log``.
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
from ianvs_specdec.common.storage.replacing import beside, put_in_place
from ianvs_specdec.load.arrivals import LEAD_IN, label
from ianvs_specdec.load.generator import RequestRecord, configuration, generating, processor_seconds, read_report
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.servers import Server

SAMPLES = 120
"""Looks at the server within a round's duration."""
SHORTEST_LOOK = 0.25
"""Seconds between two looks: each takes a server some milliseconds."""
OVERHEAD = 300.0
"""Seconds beyond the arrivals and the last answer's timeout that guidellm may take to start and to end."""


@dataclass(frozen=True)
class Sample:
    """Unix seconds, the processor time of the client so far, our server's metrics; None = unknown."""

    at: float
    client: float | None
    server: dict[str, float] | None


class RoundKey(NamedTuple):
    """A round's place in a sweep. ``repeat`` counts the policy's rounds at this rate, from 0."""

    rate: float
    policy: str
    repeat: int = 0


@dataclass(frozen=True)
class Round:
    """A finished round. ``begin``: when guidellm's clock began (Unix seconds); ``client_seconds``: all its processor
    time."""

    place: RoundKey
    begin: float
    client_seconds: float
    answered: Sequence[RequestRecord]
    samples: Sequence[Sample]


def folder_of(out: Path, place: RoundKey) -> Path:
    """Where a round is kept."""
    rate, policy, repeat = place
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", policy).strip("-")[:40]
    mark = hashlib.sha256(policy.encode()).hexdigest()[:6]
    return out / "rounds" / f"{label(rate)}-{plain}-{mark}{repeated(repeat)}"


def repeated(repeat: int) -> str:
    """How the names end of what belongs to a repeat: those of the first one say nothing."""
    return f"-{repeat + 1}" if repeat else ""


def run(plan: SweepPlan, server: Server, place: RoundKey, arrivals: Path, out: Path) -> None:
    """Drive the arrivals through the server. Raises UserError and ServerDied; then nothing is kept."""
    folder = folder_of(out, place)
    with beside(folder) as made, tempfile.TemporaryDirectory() as scratch:
        report, log = made / "report.json", made / "guidellm.log"
        own = Path(scratch)
        files = arrivals.resolve(), report.resolve(), own / "cache"
        config = configuration(server.url, server.model, *files, plan.temperature, plan.timeout)
        used = _processor_time()
        with generating(config, own, log, server.key) as process:
            samples = _watch(process, server, plan)
        seconds = _processor_time() - used
        server.check()
        begin, answered = read_report(report, arrivals, log)
        described = {**place._asdict(), "begin": begin, "client_seconds": seconds}
        (made / "requests.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(answered))
        (made / "samples.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(samples))
        (made / "round.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        put_in_place(made, folder)


def read(out: Path, place: RoundKey) -> Round | None:
    """A finished round, None where it was not finished. Raises UserError for a folder that was changed since."""
    folder = folder_of(out, place)
    if not folder.is_dir():
        return None
    try:
        described = json.loads((folder / "round.json").read_text(encoding="utf-8"))
        answered = msgspec.json.Decoder(RequestRecord).decode_lines((folder / "requests.jsonl").read_bytes())
        samples = msgspec.json.Decoder(Sample).decode_lines((folder / "samples.jsonl").read_bytes())
        return Round(place, float(described["begin"]), float(described["client_seconds"]), answered, samples)
    except (OSError, ValueError, LookupError, TypeError, msgspec.MsgspecError) as error:
        raise UserError(
            f"{folder} is not as it was written ({error!r:.200}): remove it, and the round is run again"
        ) from error


def _watch(process: subprocess.Popen[bytes], server: Server, plan: SweepPlan) -> list[Sample]:
    """Look now and then until guidellm has ended. Raises ServerDied as soon as the server has."""
    pause = max(SHORTEST_LOOK, plan.duration / SAMPLES)
    deadline = time.monotonic() + LEAD_IN + plan.duration + plan.timeout + OVERHEAD
    samples = [_look(server, process.pid)]
    # Other servers have no such metrics: stop polling.
    told = samples[0].server is not None
    while True:
        try:
            process.wait(pause)
        except subprocess.TimeoutExpired:
            server.check_process()
            samples.append(_look(server, process.pid, told))
            if time.monotonic() > deadline:
                raise UserError(
                    f"guidellm did not end within {plan.timeout + OVERHEAD:g} s of the last arrival"
                ) from None
            continue
        return [*samples, _look(server, process.pid, told)]


def _look(server: Server, pid: int, told: bool = True) -> Sample:
    return Sample(time.time(), processor_seconds(pid), server.metrics() if told else None)


def _processor_time() -> float:
    """Of this process, which looks at the server, and of those that it has waited for."""
    return sum(os.times()[:4])
