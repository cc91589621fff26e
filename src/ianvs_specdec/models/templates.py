"""Render chats with a model's chat template, in bounded time and memory.

Templates run in a separate process (``template_worker``), which is killed if a chat takes longer than ``SECONDS``.
"""

from __future__ import annotations

import atexit
import json
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import ChatTemplateError
from ianvs_specdec.common.storage.lines import LineFile
from ianvs_specdec.common.types import Message, Sampling
from ianvs_specdec.models.json_files import read_object

SECONDS = 5.0
"""Maximum seconds per chat; templates usually take some milliseconds."""
START_SECONDS = 120.0
"""Maximum seconds for the start of the process."""
HAS_TIMER = hasattr(signal, "setitimer")
"""Whether the process can end itself after ``SECONDS``."""
LONGEST_REASON = 300
"""Maximum characters of a template's error message."""


CLOCK = "strftime_now"
"""The function with which templates read the clock."""
NOTE = "template_time.txt"
GGUF_HEAD = 64 << 20
"""Bytes of a GGUF file that contain its metadata; vocabularies have some megabytes."""
DEFAULT_SAMPLING = Sampling()


def render(
    tokenizer: Any,
    messages: Sequence[Message],
    sampling: Sampling = DEFAULT_SAMPLING,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Render ``messages`` with the chat template of ``tokenizer``, and the template variables and time of ``sampling``.
    The default time is the start of the day.

    Raises ChatTemplateError if the template refuses the chat, fails, or does not end. Thread-safe.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str):
        template = tokenizer.get_chat_template()
    told = {"add_generation_prompt": add_generation_prompt, **sampling.chat_template_kwargs}
    special = {name: str(text) for name, text in tokenizer.special_tokens_map.items()}
    variables = {"tools": None, "documents": None, **special, **told, "messages": list(messages)}
    return _PROCESS.render(template, variables, sampling.template_time or str(date.today()))


def template_variables(template: str) -> set[str]:
    """The variables of a template; empty if it cannot be parsed."""
    from jinja2 import TemplateError, meta

    from ianvs_specdec.models.template_worker import environment, plain

    try:
        return meta.find_undeclared_variables(environment().parse(plain(template)))
    except (TemplateError, RecursionError):
        return set()


def with_template_time(sampling: Sampling, template: str, folder: Path) -> Sampling:
    """``sampling`` with a fixed time for ``template``: its own, or the time of the first call for ``folder``, which is
    stored there; "" if the template does not read the clock."""
    if CLOCK not in template or CLOCK not in template_variables(template):
        return replace(sampling, template_time="")
    path = folder / NOTE
    if not sampling.template_time and not path.exists():
        # The first line counts if several processes append.
        note = LineFile(path)
        note.append(f"{datetime.now().isoformat(timespec='seconds')}\n".encode())
        note.sync()
    return replace(sampling, template_time=sampling.template_time or path.read_text(encoding="utf-8").splitlines()[0])


def read_template(path: Path) -> str:
    """The chat template of a model folder or GGUF file, "" without one. Raises UserError."""
    if path.is_file():
        key = b"tokenizer.chat_template"
        with path.open("rb") as file:
            # The key with its length, and the type string.
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
    """The worker process. It is started by the first chat, and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    def render(self, template: str, variables: Mapping[str, Any], moment: str) -> str:
        with self._turn:
            if self._process is not None and self._process.poll() is not None:
                self.end()
            if self._process is None:
                self._start()
            asked = {"template": template, "variables": variables, "time": moment, "seconds": SECONDS}
            answer = self._ask(json.dumps(asked) + "\n", SECONDS)
        if "error" in answer:
            raise template_error(answer["error"])
        return str(answer["text"])

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ianvs_specdec.models.template_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            # Ctrl-C is for the server, which completes the requests that it has accepted.
            start_new_session=True,
        )
        try:
            atexit.register(self.end)
            self._ask("", START_SECONDS)
        except BaseException:
            self.end()
            raise

    def _ask(self, line: str, seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        began, late = time.monotonic(), threading.Timer(seconds, process.kill)
        try:
            # Starting a thread takes longer than rendering a chat.
            if not (line and HAS_TIMER):
                late.start()
            process.stdin.write(line)
            process.stdin.flush()
            answered = process.stdout.readline()
        except OSError:
            answered = ""
        except BaseException:
            # After an interrupt, its answer would be read as that of the next chat.
            self.end()
            raise
        finally:
            late.cancel()
        if not answered:
            self.end()
            if time.monotonic() - began >= seconds:
                raise template_error(f"it did not end within {seconds:g} s")
            raise template_error("the process in which it ran has ended: it may have taken too much memory")
        answer: dict[str, Any] = json.loads(answered)
        return answer

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            atexit.unregister(self.end)
            process.kill()
            process.communicate()


_PROCESS = _Process()


def template_error(reason: str) -> ChatTemplateError:
    """The error for a chat that the model's template cannot render."""
    message = f"the model's chat template cannot be used for this chat: {' '.join(reason.split()):.{LONGEST_REASON}}"
    return ChatTemplateError(message, [(0.0, "chat template")], key="model")
