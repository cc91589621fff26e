"""Worker processes: scripts run by the Python of another environment, in which this package is not installed.

Both sides write one JSON object per line. The first line in is ``{"engine": {arguments}}``, the first line out
``{"ready": {facts}}`` or ``{"failed": text}``. A request ``{"id": n, "prompt": [ids], "sampling": {arguments}}`` is
answered by lines ``{"id": n, ..., "finish": null or a reason}``, of which only the last has a reason, or by
``{"id": n, "error": text}``. ``{"abort": n}`` ends a request; the end of its input ends the worker. With ``--probe`` a
worker writes one line about its packages and exits.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.backends.child import ChildProcess
from ianvs_specdec.backends.untrusted import MAX_TOKENS, bounded_int
from ianvs_specdec.common.errors import AnswerError, UserError

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
PROBE_SECONDS = 120.0
"""Seconds to list packages, from a cold disk."""
MAX_MEMORY = 1 << 50
"""Bytes: 1 PiB."""

Message = dict[str, Any]


def python_of(value: str | None, key: str, package: str) -> str:
    """The Python named by option ``key``: a path, a program, or an environment variable with one; None = this Python.

    Raises UserError if there is none.
    """
    name = value or sys.executable
    if VARIABLE.fullmatch(name):
        found = os.environ.get(name)
        if not found:
            message = f"the environment variable {name} ({key}) is not set"
            raise UserError(f"{message}; set it to the Python that has {package}, or write its path", key=key)
        name = found
    path = shutil.which(os.path.expanduser(name))
    if path is None:
        raise UserError(f"there is no Python {name} ({key})", key=key)
    return path


def probe(command: Sequence[str], key: str, package: str) -> Message:
    """What the worker ``command`` reports about installed packages, without importing them.

    Raises UserError if its Python, named by option ``key``, cannot be run.
    """
    probing = [*command, "--probe"]
    try:
        done = subprocess.run(probing, capture_output=True, env=environment(), timeout=PROBE_SECONDS, check=True)
        found = json.loads(done.stdout)
        if not isinstance(found, dict):
            raise ValueError("its worker lists no packages")
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot run {command[0]} ({key}), the Python of the environment with {package}: {error}", key=key
        ) from error
    return found


def environment(threads: int | None = None) -> dict[str, str]:
    """Environment variables without Python paths of this environment, and with access to hubs disabled."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    kept |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return kept if threads is None else kept | {"OMP_NUM_THREADS": str(threads)}


class WorkerProcess(ChildProcess):
    """A worker with the engine arguments ``arguments``. ``ready`` is what it reported once the model was loaded.

    ``name``: the package, for messages. ``hints``: part of an error's text -> advice.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        arguments: Mapping[str, Any],
        variables: Mapping[str, str],
        hints: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, command, variables)
        self._hints = hints or {}
        self.ready: Message = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Message | None]] = {}
        self._sending, self._mutex = threading.Lock(), threading.Lock()
        self._over = self._garbled = False
        self._reader: threading.Thread | None = None
        try:
            self._start(arguments)
        except BaseException:
            self.close()
            raise

    def _start(self, arguments: Mapping[str, Any]) -> None:
        """Wait until the model is loaded, then start to dispatch answers."""
        self._send({"engine": arguments})
        line = self._output.readline()
        if not line:
            raise self._dead("while it loaded the model")
        try:
            message: Message = json.loads(line)
            if "failed" in message:
                reason = self._with_hint(str(message["failed"]))
                raise UserError(f"{self.name} cannot load the model: {reason} (its log: {self.log})")
            self.ready = _ready(message["ready"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"the {self.name} process does not report that it is ready: {error} (its log: {self.log})"
            raise UserError(reason) from error
        self._reader = threading.Thread(target=self._dispatch, name=f"{self.name}-answers", daemon=True)
        self._reader.start()

    def ask(self, prompt: list[int], sampling: Mapping[str, Any], take: Callable[[Message], bool]) -> None:
        """Send a request and call ``take`` with each line of its answer.

        If ``take`` returns False the request is aborted; further lines may follow, up to the last one. Raises
        AnswerError for a request that the worker rejects, and UserError if the process has ended.
        """
        started = time.monotonic()
        number, lines = next(self._numbers), queue.SimpleQueue[Message | None]()
        with self._mutex:
            self._waiting[number] = lines
            over = self._over
        finished = aborted = False
        try:
            if over:
                raise self._dead("before the request")
            self._send({"id": number, "prompt": prompt, "sampling": sampling})
            while not finished:
                line = lines.get()
                if line is None:
                    raise self._dead("during the request")
                finished = "error" in line or line.get("finish") is not None
                if "error" in line:
                    failure = (time.monotonic() - started, "refused")
                    raise AnswerError(
                        f"{self.name} did not answer the request: {self._with_hint(str(line['error']))}", [failure]
                    )
                if not take(line) and not finished and not aborted:
                    aborted = True
                    self._send({"abort": number})
        finally:
            with self._mutex:
                del self._waiting[number]
            if not finished and not aborted:
                with contextlib.suppress(UserError):
                    self._send({"abort": number})

    def close(self) -> None:
        super().close()
        if self._reader is None:
            self._output.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            with self._sending:
                self._input.write(json.dumps(message).encode() + b"\n")
                self._input.flush()
        except (OSError, ValueError) as error:
            raise self._dead("before the request") from error

    def _dispatch(self) -> None:
        """Pass each line to its request, and the end of output to all requests. Runs in its own thread."""
        with self._output as output:
            for line in output:
                try:
                    message = json.loads(line)
                    number = int(message["id"])
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                    # Cut off by a kill, or printed by something else: it is unknown which answer is lost.
                    self._garbled = self._process.poll() is None
                    break
                with self._mutex:
                    lines = self._waiting.get(number)
                if lines is not None:
                    lines.put(message)
        with self._mutex:
            self._over = True
            for lines in self._waiting.values():
                lines.put(None)

    def _dead(self, when: str) -> UserError:
        if self._garbled:
            return UserError(f"the {self.name} process wrote an invalid answer {when} (its log: {self.log})")
        end = self._end()
        if end is None:
            return UserError(f"the {self.name} process stopped responding {when} (its log: {self.log})")
        return UserError(f"the {self.name} process {end} {when}. The end of its log {self.log}: {self._last_words()}")

    def _with_hint(self, text: str) -> str:
        hints = [hint for part, hint in self._hints.items() if part in text.lower()]
        return f"{text} ({hints[0]})" if hints else text


def _ready(facts: Message) -> Message:
    """Check what a worker reports about itself. Raises ValueError, TypeError or KeyError."""
    for name, most in (("max_model_len", MAX_TOKENS << 10), ("memory", MAX_MEMORY)):
        if facts.get(name) is not None:
            bounded_int(facts[name], name, most)
    return dict(facts)
