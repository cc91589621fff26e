"""One answer of a verifier, over as many streams as it takes: where one breaks, another one is opened behind what was
confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from ianvs_specdec.backends.split.edge.connection import Connection, Stream, StreamBroken
from ianvs_specdec.backends.split.edge.drafts import Sent
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.net.split.split_pb2 import BUSY, IDLE, STREAM, Down, End, Model, Open, Tokens, Up, Verdict
from ianvs_specdec.net.split.wire import TENTHS, draft_of

SHORTEST_PAUSE, LONGEST_PAUSE, PAUSE_SHARE = 0.02, 0.25, 0.02
"""Seconds between two attempts to reach the verifier: this share of the time that it has been gone, so that it hardly
lasts longer than it must, and a verifier that is gone for long is not asked all the time."""


@dataclass(frozen=True)
class Outage:
    """What to do when the verifier cannot be had for ``patience`` seconds: "fail", or "edge", which is to finish
    without it. "wait" has no end to its patience."""

    policy: Literal["wait", "fail", "edge"] = "wait"
    patience: float = 10.0


class FinishLocally(Exception):
    """The verifier cannot be had, and the edge is to finish by itself."""


@dataclass(frozen=True)
class Reopened:
    """The stream is another one: a draft on its way is void, and the token behind the output comes next."""


Event = Verdict | Tokens | End | Reopened


class Session:
    """``opening`` says what is asked. ``output`` is what was confirmed, kept by the caller that takes the events.

    Raises ``AnswerError`` for what the verifier refuses, and where it cannot be had and the policy is to fail;
    ``FinishLocally`` where the edge is to finish by itself.
    """

    def __init__(self, connection: Connection, model: Model, opening: Open, outage: Outage) -> None:
        self._connection, self._model, self._opening, self._outage = connection, model, opening, outage
        self.output: list[int] = list(opening.output)
        self.end: End | None = None
        self.budget = 0
        """The most tokens that the verifier wants in the next draft."""
        self.seconds = 0.0
        """That the verifier took for the last step, as far as it sent it."""
        self.way: float | None = None
        """Seconds that the last opening took there and back."""
        self.fresh = True
        """Whether the verifier has yet to put out the token that comes of the prompt."""
        self.breaks, self.lost = 0, 0.0
        """Streams that broke, and the seconds without one."""
        self.opened = 0
        """Streams that the verifier answered."""
        self._stream: Stream | None = None
        try:
            self._open()
        except StreamBroken as broken:
            self._recover(str(broken))

    @property
    def streams(self) -> bool:
        """Whether the verifier drafts."""
        return self._opening.mode == STREAM

    @property
    def arrived(self) -> float:
        """When the event came that ``receive`` returned last (``time.perf_counter``): the edge may have drafted on."""
        return self._stream.arrived if self._stream is not None else time.perf_counter()

    def send(self, draft: Sent | None) -> None:
        """What is sent over a stream that breaks is lost; ``receive`` reports the break."""
        if self._stream is not None and draft is not None:
            self._stream.send(Up(draft=draft_of(draft.tree, draft.ahead)))

    def receive(self, wait: bool = True) -> Event | None:
        """What comes of it next; None where there is nothing yet and ``wait`` is False."""
        assert self._stream is not None
        try:
            down = self._stream.receive(wait)
            return None if down is None else self._take(down)
        except StreamBroken as broken:
            self._recover(str(broken))
            return self.end or Reopened()

    def close(self) -> None:
        """Nothing more is wanted."""
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
        self._stream.send(Up(open=self._opening))
        first = self._stream.receive()
        assert first is not None
        if not first.HasField("opened"):
            raise refusal(first)
        self.opened += 1
        self.way = self._stream.arrived - sent

    def _complete(self) -> bool:
        """Whether the output is whole, though the verifier's word that it is may have got lost."""
        if not self.output:
            return False
        held = len(self._opening.prompt) + len(self.output)
        if self.output[-1] in self._model.ends:
            self.end = End(finish_reason="stop")
        elif len(self.output) >= self._opening.max_tokens or (self._model.window and held >= self._model.window):
            self.end = End(finish_reason="length")
        return self.end is not None

    def _recover(self, reason: str) -> None:
        def again() -> None:
            self.close()
            self._open()

        self.breaks += 1
        patience = inf if self._outage.policy == "wait" else self._outage.patience
        try:
            self.lost += recover(again, self._connection, patience, reason)
        except StreamBroken as broken:
            self._give_up(str(broken))

    def _give_up(self, reason: str) -> None:
        if self._outage.policy == "edge":
            raise FinishLocally(reason)
        raise AnswerError(f"no verifier for {self._outage.patience:g} s (--patience): {reason}")


def refusal(down: Down) -> Exception:
    """What to raise for a message that ends a stream: ``StreamBroken`` where to open it anew may help."""
    error = down.error
    if not down.HasField("error"):
        return AnswerError("the verifier says what this version does not know: use the same version on both sides")
    if error.code in (IDLE, BUSY):
        return StreamBroken(error.message)
    return AnswerError(f"the verifier refuses: {error.message}")


def recover(again: Callable[[], object], connection: Connection, patience: float, reason: str) -> float:
    """Open a stream with ``again`` in place of one that broke for ``reason``. Returns the seconds without one. Raises
    ``StreamBroken`` where there is none after ``patience`` seconds."""
    began = time.monotonic()
    while True:
        gone = time.monotonic() - began
        if gone > patience:
            raise StreamBroken(reason)
        try:
            again()
            return time.monotonic() - began
        except StreamBroken as broken:
            reason = str(broken)
        time.sleep(min(max(SHORTEST_PAUSE, PAUSE_SHARE * (time.monotonic() - began)), LONGEST_PAUSE))
        connection.renew()
