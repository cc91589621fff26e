"""Commands in separate processes without import time: forks of one process that has imported everything.

``ianvs`` and ``specdec`` spend seconds of a processor on importing torch and transformers. A fork has them already. It
is a real process otherwise: it has an id, an environment, output and an exit code of its own, and it can be killed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests.support.paths import ROOT

COMMANDS = {"ianvs": "core.cmd.start", "specdec": "ianvs_specdec.commands.cli"}
"""Command -> the module with its ``main``."""
LIGHT = (
    *COMMANDS.values(),
    *("core.cmd.benchmarking", "core.runner.local", "sedna.core.joint_inference"),
    *("ianvs_specdec.plugin.models", "ianvs_specdec.report.metrics", "ianvs_specdec.backends.api.backend"),
    *("ianvs_specdec.backends.vllm.backend", "ianvs_specdec.models.gguf.exporting"),
    *("ianvs_specdec.routing.learned.uncertainty", "ianvs_specdec.routing.lifelong.learning"),
    *("ianvs_specdec.routing.routers.personal_data", "numpy.random", "numpy.ma", "sacrebleu"),
)
"""Modules that every run of ``ianvs`` imports."""
HEAVY = (
    *("ianvs_specdec.backends.local", "ianvs_specdec.serving.app", "uvicorn"),
    *("torch", "transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto"),
    *("transformers.generation", "safetensors.torch"),
)
"""Further modules of a run with local models."""
NUMBER = struct.Struct("i")
POSSIBLE = hasattr(os, "fork") and hasattr(socket, "send_fds")


class Fork:
    """A running command, with the interface of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = self._told()
        self._code: int | None = None

    def __del__(self) -> None:
        # A failed test has not waited, and its open socket would fail a later one as well.
        self._connection.close()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; -N if signal N ended it. Raises TimeoutError."""
        if self._code is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} has not ended")
            self._code = self._told()
            self._connection.close()
        return self._code

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except TimeoutError:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self) -> int:
        number: int = NUMBER.unpack(self._connection.recv(NUMBER.size, socket.MSG_WAITALL))[0]
        return number


@functools.cache
def _parent() -> socket.socket:
    """The address of the forking process."""
    here, there = socket.socketpair()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm", str(there.fileno())],
        cwd=ROOT,
        env=environment,
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    there.close()

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


def start(
    command: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    outputs: Sequence[Path],
    models: bool = False,
) -> Fork:
    """Start ``ianvs`` or ``specdec`` in ``folder``. ``outputs``: the files of standard output and error; ``models``:
    whether local ones will be loaded."""
    for path in outputs:
        path.write_bytes(b"")
    here, there = socket.socketpair()
    with there:
        socket.send_fds(_parent(), [b"m" if models else b"-"], [there.fileno()])
    request = [command, list(arguments), str(folder), dict(environment), [str(path.absolute()) for path in outputs]]
    here.sendall(json.dumps(request).encode() + b"\n")
    return Fork(here)


def _serve(control: socket.socket) -> None:
    """Fork for every connection."""
    _import(LIGHT)
    while passed := (received := socket.recv_fds(control, 1, 1))[1]:
        if received[0] == b"m":
            _import(HEAVY)
        with socket.socket(fileno=passed[0]) as connection:
            if not os.fork():
                control.close()
                _watch(connection)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


@functools.cache
def _import(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()


def _watch(connection: socket.socket) -> NoReturn:
    """Run the command in a further fork; send its id, then its exit status."""
    with connection.makefile("r", encoding="utf-8") as lines:
        request = json.loads(lines.readline())
    if not (pid := os.fork()):
        connection.close()
        _run(*request)
    connection.sendall(NUMBER.pack(pid))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(NUMBER.pack(code))
    os._exit(0)


def _run(command: str, arguments: list[str], folder: str, environment: dict[str, str], outputs: list[str]) -> NoReturn:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(outputs, start=1):
        file = os.open(path, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    sys.argv = [command, *arguments]
    sys.path[0] = os.path.dirname(sys.executable)
    try:
        code = importlib.import_module(COMMANDS[command]).main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Python's finalization touches every object, which would copy all pages into this process.
    os._exit(code or 0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
