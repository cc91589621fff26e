"""The process that watches over a program and its tests: it starts both, ends both, and clears up after them.

It has a session of its own and outlives the process that asked for it just long enough to clear up: when that one is
gone, however it went, the pipe between them closes.

Reads two messages from standard input, each a length of 8 bytes and JSON: ``{"seconds", "memory", "wall", "folder",
"source", "entry_point"}`` and ``{"setup", "tests", "entry_point"}``. Writes ``{"error", "held"}`` to standard output
and, where the program did not tell how it ended, ``"lost"`` ("gone", "garbled" or "late") and its exit ``"status"``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from ianvs_specdec.benchmarks.sandboxed import program, trial
from ianvs_specdec.benchmarks.sandboxed.channel import Channel, Lost, read_exactly
from ianvs_specdec.benchmarks.sandboxed.confinement import confine

LAST = 1.0
"""Seconds for a program that has closed its pipes to end."""


def main() -> None:
    # The second message is not for the program's process, which begins as a copy of this one.
    order = _message()
    os.mkdir(order["folder"], 0o755)
    children: list[int] = []
    try:
        _write(1, _watch(order, children))
    except EOFError:
        # Who asked is gone.
        pass
    finally:
        for child in children:
            _end(child)
        _remove(order["folder"])


def _watch(order: dict[str, Any], children: list[int]) -> dict[str, Any]:
    """The verdict. EOFError where nobody is left who wants it."""
    deadline = time.monotonic() + order["wall"]
    (calls, to_program), (replies, to_tests), (verdict, to_here) = os.pipe(), os.pipe(), os.pipe()
    limits = order["seconds"], order["memory"], order["folder"]

    def run_program() -> None:
        held = confine(*limits, keep=(calls, to_tests))
        program.run(Channel(calls, to_tests), order, held)

    def run_tests() -> None:
        confine(*limits, keep=(replies, to_program, to_here))
        _write(to_here, trial.run(Channel(replies, to_program), judged))

    children.append(_start(run_program))
    judged = _message()
    children.append(_start(run_tests))
    for descriptor in (calls, to_program, replies, to_tests, to_here):
        os.close(descriptor)
    told = Channel(verdict, -1)
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([0, verdict], [], [], left)
        if verdict in ready:
            try:
                return _explained(told.receive(), children[0])
            except Lost:
                return {"error": f"the tests ended before their end{_ended(children[1])[1]}", "held": []}
        if ready and not os.read(0, 1):
            raise EOFError
    return {"error": "lost", "lost": "late", "held": []}


def _remove(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        # Where the system keeps little in, the program may have made something in it.
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _message() -> dict[str, Any]:
    length = int.from_bytes(read_exactly(0, 8), "big")
    message: dict[str, Any] = json.loads(read_exactly(0, length))
    return message


def _write(descriptor: int, message: dict[str, Any]) -> None:
    Channel(-1, descriptor).send(message)


def _start(run: Callable[[], None]) -> int:
    """A child that runs the function and is over with it."""
    if (child := os.fork()) != 0:
        return child
    code = 1
    try:
        run()
        code = 0
    finally:
        os._exit(code)


def _explained(verdict: dict[str, Any], child: int) -> dict[str, Any]:
    """The verdict, with the program's exit status where it was lost."""
    if verdict.get("lost") == "gone":
        verdict["status"] = _ended(child)[0]
    return verdict


def _ended(child: int) -> tuple[int | None, str]:
    """A child's exit status, None if it has not ended, and what to say about it."""
    until = time.monotonic() + LAST
    while time.monotonic() < until:
        # It stays to be waited for: ``_end`` does that.
        found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            return status, f" (exit status {status})"
        time.sleep(0.005)
    return None, ""


def _end(child: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    os.waitpid(child, 0)
