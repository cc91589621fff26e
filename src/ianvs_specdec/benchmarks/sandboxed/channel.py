"""Messages between the processes of a program under test: JSON, a line each, over pipes."""

from __future__ import annotations

import json
import os
from typing import Any

LONGEST = 1 << 26
"""Bytes of a message. A program that returns more than 64 MB has lost its way."""
_PIECE = 1 << 16


class Lost(Exception):
    """The other side has gone (``garbled`` is False), or says what makes no sense."""

    def __init__(self, garbled: bool) -> None:
        super().__init__("garbled" if garbled else "gone")
        self.garbled = garbled


class Channel:
    """One end of a conversation. What a program may replace of Python is taken before it runs."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._rest = reader, writer, bytearray()
        self._read, self._write, self._dumps, self._loads = os.read, os.write, json.dumps, json.loads

    def send(self, message: Any) -> None:
        """Lost where nobody reads any more."""
        data = memoryview(self._dumps(message).encode() + b"\n")
        try:
            while data:
                data = data[self._write(self._writer, data) :]
        except OSError:
            raise Lost(garbled=False) from None

    def receive(self) -> dict[str, Any]:
        """The next message. Raises Lost."""
        while (end := self._rest.find(b"\n")) < 0:
            piece = self._read(self._reader, _PIECE)
            if not piece:
                raise Lost(garbled=False)
            self._rest += piece
            if len(self._rest) > LONGEST:
                raise Lost(garbled=True)
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        try:
            message = self._loads(line)
        except (ValueError, RecursionError):
            raise Lost(garbled=True) from None
        if not isinstance(message, dict):
            raise Lost(garbled=True)
        return message


def read_exactly(descriptor: int, count: int) -> bytes:
    """So many bytes and no more: what comes after them is not for everybody. EOFError where there are fewer."""
    data = b""
    while len(data) < count:
        piece = os.read(descriptor, min(_PIECE, count - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return data


def told(reason: BaseException) -> str:
    """One line on an exception."""
    return f"{type(reason).__name__}: {reason}"[:200].strip(": ")
