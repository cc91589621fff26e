"""Chats as the text that a model's chat template makes of them, in bounded time and memory.

A template that is ``plain`` is rendered here. Any other runs in a process of its own, one for each template, which is
ended if a chat takes longer than ``SECONDS``.
"""

from __future__ import annotations

import atexit
import functools
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ianvs_specdec.checkpoints.plain import is_plain
from ianvs_specdec.errors import UserError
from ianvs_specdec.types import Message

SECONDS = 5.0
"""What one chat may take; templates of models take some milliseconds."""
START_SECONDS = 120.0
"""What a process may take to start, on a machine that is busy."""
LONGEST_REASON = 300
"""Characters of what a template says of itself."""


def render(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """The text of ``messages`` by the chat template of ``tokenizer``, which has one.

    Raises UserError where the template refuses the chat, fails, or does not end. Thread-safe.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str):
        template = tokenizer.get_chat_template()
    if not _is_plain(template):
        variables = json.dumps({name: str(text) for name, text in tokenizer.special_tokens_map.items()})
        return _process(template, variables).render(list(messages), add_generation_prompt)
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, tokenize=False)
    except Exception as error:
        raise _failed(f"{type(error).__name__}: {error}") from error
    return str(text)


_is_plain = functools.lru_cache(maxsize=64)(is_plain)


class _Process:
    """The process of one template. It starts when a chat is there for it, and again after it was ended."""

    def __init__(self, template: str, variables: str) -> None:
        self._told = {"template": template, "variables": json.loads(variables), "seconds": SECONDS}
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._turn = threading.Lock()

    def render(self, messages: list[Message], add_generation_prompt: bool) -> str:
        with self._turn:
            if self._process is None:
                self._start()
            answer = self._ask({"conversations": [messages], "add_generation_prompt": add_generation_prompt}, SECONDS)
        if "error" in answer:
            raise _failed(answer["error"])
        return str(answer["text"])

    @property
    def pid(self) -> int | None:
        """The process that runs; None where none does."""
        return None if self._process is None else self._process.pid

    def _start(self) -> None:
        code = "from ianvs_specdec.checkpoints.template_process import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        atexit.register(self.end)
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
        self._ask(self._told, START_SECONDS)

    def _ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.end()
            raise _failed(f"it did not end within {seconds:g} s") from None
        except OSError:
            line = ""
        if not line:
            self.end()
            raise _failed("the process in which it ran has ended: it may have taken too much memory")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self.end)
        process.kill()
        process.wait()
        assert process.stdin is not None
        with suppress(OSError):  # what was left to write has nobody to read it
            process.stdin.close()


_processes: dict[tuple[str, str], _Process] = {}


def processes() -> list[_Process]:
    """The processes of all templates that were rendered in one."""
    return list(_processes.values())


def _process(template: str, variables: str) -> _Process:
    return _processes.setdefault((template, variables), _Process(template, variables))


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Hand on the lines of a process, and "" at its end."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")


def _failed(reason: str) -> UserError:
    told = " ".join(reason.split())
    return UserError(f"the model's chat template cannot be used for this chat: {told:.{LONGEST_REASON}}", key="model")
