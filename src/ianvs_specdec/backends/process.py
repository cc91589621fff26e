"""A worker process in an environment of its own, seen from here: found, started, asked from many threads, and reported
when it dies.

A worker is a script that another Python runs. Nothing of ours is installed there. One JSON object per line goes each
way. The first line in is ``{"engine": {arguments}}``, the first line out ``{"ready": {what it says of itself}}`` or
``{"failed": text}``. Then ``{"id": n, "prompt": [ids], "sampling": {arguments}}`` is answered by lines ``{"id": n, ...,
"finish": null or a reason}``, the last of which has a reason, or by ``{"id": n, "error": text}``. ``{"abort": n}`` ends
a request. End of input ends the worker. Called with ``--probe``, it writes one line about its packages and ends.
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
from ianvs_specdec.backends.untrusted import MOST_TOKENS, whole
from ianvs_specdec.common.errors import AnswerError, UserError

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
PROBE_SECONDS = 120.0
"""Seconds to say which packages there are. A cold disk takes some."""
MOST_MEMORY = 1 << 50
"""Bytes: a petabyte, more than any machine's."""

Message = dict[str, Any]


def python_of(value: str | None, key: str, package: str) -> str:
    """The program that the option ``key`` means: a path, a program's name, or an environment variable that holds one of
    these; the running Python where it is None. Raises UserError where it means none.
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
    """What the worker ``command`` says of the packages in its environment, without importing them. Raises UserError
    where its Python, which the option ``key`` names, cannot be run.
    """
    probing = [*command, "--probe"]
    try:
        done = subprocess.run(probing, capture_output=True, env=environment(), timeout=PROBE_SECONDS, check=True)
        found = json.loads(done.stdout)
        if not isinstance(found, dict):
            raise ValueError("its worker names no packages")
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError) as error:
        message = (
            f"cannot run {command[0]} ({key}), which is to be the Python of an environment with {package}: {error}"
        )
        raise UserError(message, key=key) from error
    return found


def missing(python: str, key: str, package: str, install: str) -> UserError:
    """The error for an environment without the package; ``install`` is its name on the index."""
    return UserError(
        f"there is no {package} in the environment of {python}: install {install} there, or name the Python of an "
        f"environment that has it under {key}",
        key=key,
    )


def environment(threads: int | None = None) -> dict[str, str]:
    """This process's environment without the paths that would bring the packages of one Python into another, and with
    no way to a hub: model files are here already.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    kept |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return kept if threads is None else kept | {"OMP_NUM_THREADS": str(threads)}


class WorkerProcess(ChildProcess):
    """One worker with the given arguments. ``name`` is that of its package, in messages; ``hints`` say what to do about
    an error whose own text holds the words before them.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        arguments: Mapping[str, Any],
        surroundings: Mapping[str, str],
        hints: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, command, surroundings)
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
        """Wait until the model is loaded, then pass answers on as they come."""
        self._send({"engine": arguments})
        line = self._output.readline()
        if not line:
            raise self._dead("while it loaded the model")
        try:
            message: Message = json.loads(line)
            if "failed" in message:
                reason = self._told(str(message["failed"]))
                raise UserError(f"{self.name} cannot load the model: {reason} (its log: {self.log})")
            self.ready = _ready(message["ready"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"the {self.name} process does not say that it is ready: {error} (its log: {self.log})"
            raise UserError(reason) from error
        self._reader = threading.Thread(target=self._dispatch, name=f"{self.name}-answers", daemon=True)
        self._reader.start()

    def ask(self, prompt: list[int], sampling: Mapping[str, Any], take: Callable[[Message], bool]) -> None:
        """Call ``take`` with each line that answers a request, until the last.

        When it returns False the request is aborted; lines that were under way and a last one still come. Raises
        AnswerError for a request that the worker does not take, and UserError when the process is gone.
        """
        started = time.monotonic()
        number, lines = next(self._numbers), queue.SimpleQueue[Message | None]()
        with self._mutex:
            self._waiting[number] = lines
            over = self._over
        finished = aborted = False
        try:
            if over:
                raise self._dead("before it was asked")
            self._send({"id": number, "prompt": prompt, "sampling": sampling})
            while not finished:
                line = lines.get()
                if line is None:
                    raise self._dead("while it answered")
                finished = "error" in line or line.get("finish") is not None
                if "error" in line:
                    failure = (time.monotonic() - started, "refused")
                    raise AnswerError(
                        f"{self.name} did not answer the request: {self._told(str(line['error']))}", [failure]
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
            raise self._dead("before it was asked") from error

    def _dispatch(self) -> None:
        """Hand each line to the request that it answers, and the end to all of them. Runs in a thread of its own."""
        with self._output as output:
            for line in output:
                try:
                    message = json.loads(line)
                    number = int(message["id"])
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                    # The line that the process was writing when it was killed, or of another program: which answer
                    # is lost is not known, so all requests end.
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

    def _told(self, text: str) -> str:
        """An error of the package, with what to do about it where that is known."""
        hints = [hint for part, hint in self._hints.items() if part in text.lower()]
        return f"{text} ({hints[0]})" if hints else text


def _ready(told: Message) -> Message:
    """What a worker says of itself. Raises ValueError, TypeError or KeyError for what cannot be."""
    for name, most in (("max_model_len", MOST_TOKENS << 10), ("memory", MOST_MEMORY)):
        if told.get(name) is not None:
            whole(told[name], name, most)
    return dict(told)
