"""Chats as the text that a model's chat template makes of them, in bounded time and memory.

A template that is ``plain`` is rendered here. Any other runs in a process of its own, one for each template, which is
ended if a chat takes longer than ``SECONDS``.
"""

from __future__ import annotations

import atexit
import json
import queue
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import ChatTemplateError
from ianvs_specdec.common.storage.lines import LineFile
from ianvs_specdec.common.types import Message, Sampling
from ianvs_specdec.models.documents import read_object

SECONDS = 5.0
"""What one chat may take; templates of models take some milliseconds."""
START_SECONDS = 120.0
"""What a process may take to start, on a machine that is busy."""
LONGEST_REASON = 300
"""Characters of what a template says of itself."""


CLOCK = "strftime_now"
"""What templates call to have the time; transformers has it of the machine."""
GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""Marks of transformers', around what an assistant says."""
NOTE = "template_time.txt"
GGUF_HEAD = 64 << 20
"""Bytes of a GGUF file in which its metadata end; vocabularies have some megabytes."""
UNTOLD = Sampling()


def render(
    tokenizer: Any, messages: Sequence[Message], sampling: Sampling = UNTOLD, *, add_generation_prompt: bool = True
) -> str:
    """The text of ``messages`` by the chat template of ``tokenizer``, which has one, with what ``sampling`` tells it.
    Its clock shows the beginning of this day, unless ``sampling`` has a time.

    Raises ChatTemplateError where the template refuses the chat, fails, or does not end. Thread-safe.
    """
    from ianvs_specdec.models.plain import compiled, is_plain

    template = tokenizer.chat_template
    if not isinstance(template, str):
        template = tokenizer.get_chat_template()
    told = {"add_generation_prompt": add_generation_prompt, **sampling.chat_template_kwargs}
    variables = {name: str(text) for name, text in tokenizer.special_tokens_map.items()} | told
    if not is_plain(template):
        return _process(template).render(list(messages), variables, sampling.template_time or str(date.today()))
    try:
        return compiled(template).render({"tools": None, "documents": None, **variables, "messages": list(messages)})
    except Exception as error:
        raise failed(f"{type(error).__name__}: {error}") from error


def reads(template: str) -> set[str]:
    """The variables that a template looks up; none where it cannot be parsed."""
    from jinja2 import Environment, TemplateError, meta

    from ianvs_specdec.models.plain import LOOPS

    try:
        return meta.find_undeclared_variables(Environment(extensions=LOOPS).parse(GENERATION.sub("", template)))
    except (TemplateError, RecursionError):
        return set()


def timed(sampling: Sampling, template: str, folder: Path) -> Sampling:
    """``sampling`` with what the clock of ``template`` shows: the time that it has, or else when this was first called
    for ``folder``, which keeps that; none where the template reads no clock."""
    if CLOCK not in template or CLOCK not in reads(template):
        return replace(sampling, template_time="")
    path = folder / NOTE
    if not sampling.template_time and not path.exists():
        # Whoever comes second appends behind the first.
        LineFile(path).append(f"{datetime.now().isoformat(timespec='seconds')}\n".encode())
    return replace(sampling, template_time=sampling.template_time or path.read_text(encoding="utf-8").splitlines()[0])


def template_of(path: Path) -> str:
    """The chat template of a model's folder or GGUF file, "" where it has none. Raises UserError."""
    if path.is_file():
        key = b"tokenizer.chat_template"
        with path.open("rb") as file:
            # A key, the type text, and its length.
            rest = file.read(GGUF_HEAD).partition(struct.pack("<Q", len(key)) + key + struct.pack("<I", 8))[2]
        return rest[8 : 8 + int.from_bytes(rest[:8], "little")].decode("utf-8", "replace")
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8-sig", errors="replace")
    settings = path / "tokenizer_config.json"
    template = read_object(settings, key="model").get("chat_template") if settings.is_file() else ""
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return str(template or "")


class _Process:
    """The process of one template. It starts when a chat is there for it, and again after it was ended."""

    def __init__(self, template: str) -> None:
        self._told = {"template": template, "seconds": SECONDS}
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._turn = threading.Lock()

    def render(self, messages: list[Message], variables: Mapping[str, Any], time: str) -> str:
        with self._turn:
            if self._process is None:
                self._start()
            answer = self._ask({"variables": {**variables, "conversations": [messages]}, "time": time}, SECONDS)
        if "error" in answer:
            raise failed(answer["error"])
        return str(answer["text"])

    def _start(self) -> None:
        code = "from ianvs_specdec.models.template_process import main; main()"
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
            raise failed(f"it did not end within {seconds:g} s") from None
        except OSError:
            line = ""
        if not line:
            self.end()
            raise failed("the process in which it ran has ended: it may have taken too much memory")
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


_processes: dict[str, _Process] = {}


def _process(template: str) -> _Process:
    return _processes.setdefault(template, _Process(template))


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Hand on the lines of a process, and "" at its end."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")


def failed(reason: str) -> ChatTemplateError:
    """The error for a chat of which the model's template makes no prompt."""
    message = f"the model's chat template cannot be used for this chat: {' '.join(reason.split()):.{LONGEST_REASON}}"
    return ChatTemplateError(message, [(0.0, "chat template")], key="model")
