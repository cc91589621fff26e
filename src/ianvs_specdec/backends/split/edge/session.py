"""A decoding session with a verifier. It survives broken streams: a new one continues after the confirmed tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from ianvs_specdec.backends.split.edge.connection import Connection, Stream, StreamBroken, refusal
from ianvs_specdec.backends.split.edge.drafts import SentDraft
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.net.split.split_pb2 import STREAM, Down, End, Model, Open, Tokens, Up, Verdict
from ianvs_specdec.net.split.wire import TENTHS, encode_draft

MIN_PAUSE, MAX_PAUSE, PAUSE_SHARE = 0.02, 0.25, 0.02
"""Seconds between attempts to reconnect, and their share of the time since the break."""


@dataclass(frozen=True)
class Outage:
    """The policy for a verifier that is unreachable for ``patience`` seconds: ``edge`` finishes on the edge, ``wait``
    ignores ``patience``."""

    policy: Literal["wait", "fail", "edge"] = "wait"
    patience: float = 10.0


class FinishLocally(Exception):
    """The verifier is unreachable, and the edge has to finish the answer."""


@dataclass(frozen=True)
class Reopened:
    """There is a new stream: drafts in flight are void, and the token after the output comes next."""


Event = Verdict | Tokens | End | Reopened


class Session:
    """``opening`` is the request; the caller appends confirmed tokens to ``output``.

    Raises AnswerError if the verifier refuses, or is unreachable with policy ``fail``, and ``FinishLocally`` with
    policy ``edge``.
    """

    def __init__(self, connection: Connection, model: Model, opening: Open, outage: Outage) -> None:
        self._connection, self._model, self._opening, self._outage = connection, model, opening, outage
        self.output: list[int] = list(opening.output)
        self.end: End | None = None
        self.budget = 0
        """Maximum tokens of the next draft."""
        self.seconds = 0.0
        """Of the verifier's last step, as far as reported."""
        self.round_trip: float | None = None
        """Seconds of the last opening of a stream."""
        self.fresh = True
        """Whether the first token after the prompt is missing."""
        self.breaks, self.lost = 0, 0.0
        """Broken streams, and the seconds without one."""
        self.opened = 0
        """Streams that the verifier accepted."""
        self._stream: Stream | None = None
        try:
            self._open()
        except StreamBroken as broken:
            self._recover(str(broken))

    @property
    def streams(self) -> bool:
        """Whether the mode is ``stream``."""
        return self._opening.mode == STREAM

    @property
    def arrived(self) -> float:
        """When the last received event arrived (``time.perf_counter``)."""
        return self._stream.arrived if self._stream is not None else time.perf_counter()

    def send(self, draft: SentDraft | None) -> None:
        """Send a draft. If the stream breaks it is lost, which ``receive`` reports."""
        if self._stream is not None and draft is not None:
            self._stream.send(Up(draft=encode_draft(draft.tree, draft.ahead)))

    def receive(self, wait: bool = True) -> Event | None:
        """The next event; None if there is none yet and ``wait`` is False."""
        assert self._stream is not None
        try:
            down = self._stream.receive(wait)
            return None if down is None else self._take(down)
        except StreamBroken as broken:
            self._recover(str(broken))
            return self.end or Reopened()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close(finished=self.end is not None)
            self._stream = None

    def _take(self, down: Down) -> Event:
        kind = down.WhichOneof("message")
        if kind == "verdict":
            if down.verdict.budget:
                self.budget = down.verdict.budget - 1
            self.seconds = down.verdict.tenths / TENTHS or self.seconds
            return down.verdict
        if kind == "tokens":
            self.fresh = False
            self.seconds = down.tokens.tenths / TENTHS or self.seconds
            return down.tokens
        if kind == "end":
            self.end = down.end
            return down.end
        raise refusal(down)

    def _open(self) -> None:
        if self._complete():
            return
        self._stream = self._connection.stream()
        self.budget, self.fresh = int(self._model.most_draft), True
        self._opening.output[:] = self.output
        sent = time.perf_counter()
        self._stream.open(Up(open=self._opening))
        self.opened += 1
        self.round_trip = self._stream.arrived - sent

    def _complete(self) -> bool:
        """Whether the output is complete, though the verifier's message may have been lost."""
        if not self.output:
            return False
        held = len(self._opening.prompt) + len(self.output)
        if self.output[-1] in self._model.ends:
            self.end = End(finish_reason="stop")
        elif len(self.output) >= self._opening.max_tokens or (self._model.window and held >= self._model.window):
            self.end = End(finish_reason="length")
        return self.end is not None

    def _recover(self, reason: str) -> None:
        def reopen() -> None:
            self.close()
            self._open()

        self.breaks += 1
        patience = inf if self._outage.policy == "wait" else self._outage.patience
        try:
            self.lost += recover(reopen, self._connection, patience, reason)
        except StreamBroken as broken:
            if self._outage.policy == "edge":
                raise FinishLocally(str(broken)) from broken
            raise AnswerError(f"no verifier for {self._outage.patience:g} s (--patience): {broken}") from broken


def recover(reopen: Callable[[], object], connection: Connection, patience: float, reason: str) -> float:
    """Open a new stream with ``reopen`` after a break for ``reason``. Returns the seconds without one.

    Raises ``StreamBroken`` after ``patience`` seconds.
    """
    began = time.monotonic()
    while time.monotonic() - began <= patience:
        try:
            reopen()
            return time.monotonic() - began
        except StreamBroken as broken:
            reason = str(broken)
        time.sleep(min(max(MIN_PAUSE, PAUSE_SHARE * (time.monotonic() - began)), MAX_PAUSE))
        connection.renew()
    raise StreamBroken(reason)
