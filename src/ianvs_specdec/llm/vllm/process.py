"""A vLLM engine seen from here: its process is started, asked from many threads, and reported when it dies."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.errors import AnswerError, UserError
from ianvs_specdec.llm.told import MOST_TOKENS, whole

WORKER = Path(__file__).with_name("worker.py")
GRACE = 15.0
PROBE_SECONDS = 120.0
TAIL_LINES = 3
MOST_MEMORY = 1 << 50
"""Bytes: a petabyte, more than any machine's."""
HINTS = {
    "max seq len": "set kv_cache_memory_bytes higher or max_model_len lower",
    "memory for the cache blocks": "set kv_cache_memory_bytes higher or max_model_len lower",
    "out of memory": "set gpu_memory_utilization, max_num_seqs or max_model_len lower, or quantization",
    "arctic_inference": "suffix decoding needs the package arctic-inference beside vLLM",
}
"""What to do about errors whose own text does not say it."""

Message = dict[str, Any]


def probe(python: str) -> tuple[str, bool]:
    """vLLM's version in the environment of ``python``, and whether it is a build for CPUs. Imports nothing heavy there.

    Raises UserError where there is no such Python, or no vLLM in it.
    """
    command = [python, str(WORKER), "--probe"]
    try:
        done = subprocess.run(command, capture_output=True, env=environment(None), timeout=PROBE_SECONDS, check=True)
        found: Message = json.loads(done.stdout)
        version, cpu = found["vllm"], bool(found["cpu"] if found["vllm"] is not None else False)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError) as error:
        message = f"cannot run {python} (vllm_python), which is to be the Python of an environment with vLLM: {error}"
        raise UserError(message, key="vllm_python") from error
    if version is None:
        raise UserError(
            f"there is no vLLM in the environment of {python}: install vllm there, or name the Python of an "
            "environment that has it under vllm_python",
            key="vllm_python",
        )
    return str(version), cpu


def environment(threads: int | None) -> dict[str, str]:
    """This process's environment without the paths that would bring the packages of one Python into another."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # Model files are here already; usage reports go nowhere.
    kept |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if threads is not None:
        # Left alone, vLLM binds one thread to each core, whatever number is asked for.
        kept |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return kept


class VllmProcess:
    """One engine with the given engine arguments, from ``start`` to ``close``.

    What vLLM writes goes to a log file, which is kept where the process died and removed where it was closed.
    """

    def __init__(self, python: str, arguments: Mapping[str, Any], threads: int | None) -> None:
        handle, name = tempfile.mkstemp(prefix="specdec-vllm-", suffix=".log")
        self.log = Path(name)
        self.ready: Message = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Message | None]] = {}
        self._sending, self._mutex = threading.Lock(), threading.Lock()
        self._over = self._garbled = False
        self._reader: threading.Thread | None = None
        with os.fdopen(handle, "wb") as stderr:
            # In a session of its own: an interrupt is for this process, which then ends that one.
            self._process = subprocess.Popen(
                [python, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment(threads),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
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
                raise UserError(
                    f"vLLM cannot load the model: {with_hint(str(message['failed']))} (its log: {self.log})"
                )
            self.ready = _ready(message["ready"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"the vLLM process does not say that it is ready: {error} (its log: {self.log})") from error
        self._reader = threading.Thread(target=self._dispatch, name="vllm-answers", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, prompt: list[int], sampling: Mapping[str, Any], take: Callable[[Message], bool]) -> None:
        """Call ``take`` with each line that answers a request, as ``worker`` describes them, until the last.

        When it returns False the request is aborted; lines that were under way and a last one still come. Raises
        AnswerError for a request that vLLM does not take, and UserError when the process is gone.
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
                    raise AnswerError(f"vLLM refused the request: {with_hint(str(line['error']))}", [failure])
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
        """End the process and everything that it started. Does nothing when that has happened."""
        with contextlib.suppress(OSError):
            self._input.close()
        deadline = time.monotonic() + GRACE
        # With several accelerators it has children, in its group. The group is killed before its leader is waited for:
        # until then the number is nobody else's.
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            while not self._ended() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._reader is None:
            self._output.close()
        if self._process.returncode == 0:
            self.log.unlink(missing_ok=True)

    def _ended(self) -> bool:
        """Whether the process has ended, without taking note of it. Raises ChildProcessError once that was done."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

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
                    # The line that the process was writing when it was killed, or of another program: whose answer is
                    # lost cannot be told, so that nobody may go on waiting.
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
            return UserError(f"the vLLM process wrote what is no answer {when} (its log: {self.log})")
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return UserError(f"the vLLM process does not answer any more {when} (its log: {self.log})")
        written = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        tail = " | ".join(lines[-TAIL_LINES:]) or "it wrote nothing"
        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by signal {-status}"
        if -status == signal.SIGKILL:
            how += ", as the system does where memory runs out"
        return UserError(f"the vLLM process {how} {when}. The end of its log {self.log}: {tail}")


def _ready(told: Message) -> Message:
    """What the worker says of itself. Raises ValueError, TypeError or KeyError for what cannot be."""
    whole(told["max_model_len"], "max_model_len", MOST_TOKENS << 10)
    if told["memory"] is not None:
        whole(told["memory"], "memory", MOST_MEMORY)
    return {**told, "cpu": bool(told["cpu"])}


def with_hint(text: str) -> str:
    """An error of vLLM, with what to do about it where that is known."""
    hints = [hint for part, hint in HINTS.items() if part in text.lower()]
    return f"{text} ({hints[0]})" if hints else text
