"""A session that outlives its streams: a broken one is resumed, and where the verifier has forgotten it, begun anew
behind what was confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ianvs_specdec.backends.split.edge.connection import Broken, Connection, Stream
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.net.split.split_pb2 import (
    BUSY,
    IDLE,
    SPLIT,
    STREAM,
    Down,
    Draft,
    End,
    Leave,
    Model,
    Open,
    Ping,
    Pong,
    Switch,
    Tokens,
    Up,
    Verdict,
)
from ianvs_specdec.net.split.wire import TENTHS

SHORTEST_PAUSE, LONGEST_PAUSE, PAUSE_SHARE = 0.02, 0.25, 0.02
"""Seconds between two attempts to resume: this share of the time that the verifier has been gone, so that it hardly
lasts longer than it must, and a verifier that is gone for long is not asked all the time."""
LEAVING = 1.0
"""Seconds in which the last word may reach the verifier."""


@dataclass(frozen=True)
class Outage:
    """What to do when the verifier cannot be had for ``patience`` seconds: "fail", or "edge", which is to finish
    without it. "wait" has no end to its patience."""

    policy: Literal["wait", "fail", "edge"] = "wait"
    patience: float = 10.0


class Alone(Exception):
    """The verifier cannot be had, and the edge is to finish by itself."""


@dataclass(frozen=True)
class Anew:
    """The stream is another one: all drafts on their way are void, and these tokens were confirmed besides. ``sent``:
    the draft made for the new stream is on its way."""

    tokens: list[int]
    sent: bool


Event = Verdict | Tokens | Anew | End | Pong
Redraft = Callable[[int], Draft | None]
"""The draft of at most so many tokens behind what is confirmed, where all that were sent are void; None = none."""


class Session:
    """``opening`` says what is asked. ``output`` is what was confirmed, kept by whoever takes the events. What
    ``redraft`` makes is sent behind the request to resume, so that it is verified without a round trip more.

    Raises ``AnswerError`` for what the verifier refuses, and where it cannot be had and the policy is to fail;
    ``Alone`` where the edge is to finish by itself.
    """

    def __init__(
        self, connection: Connection, model: Model, opening: Open, outage: Outage, redraft: Redraft = lambda most: None
    ) -> None:
        self._connection, self._model, self._opening, self._outage = connection, model, opening, outage
        self._redraft = redraft
        self.output: list[int] = list(opening.output)
        self.end: End | None = None
        self.budget = int(model.limits.draft)
        """The most tokens that the verifier wants in the next draft."""
        self.seconds = 0.0
        """That the verifier took for the last step, as far as it told."""
        self.fresh = True
        """Whether the verifier has yet to put out the token that comes of the prompt."""
        self.streams = False
        """Whether the verifier drafts."""
        self._switching = False
        self.breaks, self.lost = 0, 0.0
        """Streams that broke, and the seconds without one."""
        self.opened = 0
        """Sessions that the verifier knows this one by, one after the other."""
        self._stream: Stream | None = None
        try:
            self._begin()
        except Broken as broken:
            self._recover(str(broken))

    def send(self, message: Up) -> None:
        """What is sent over a stream that breaks is lost, of which ``receive`` tells."""
        if self._stream is not None:
            self._stream.send(message)

    def switch(self, streams: bool) -> None:
        """Have the verifier draft, or the edge. What comes before the verifier has read this is taken as before; no
        draft may be on its way."""
        self._opening.mode = STREAM if streams else SPLIT
        self._switching = not streams
        self.streams = True
        self.send(Up(switch=Switch(mode=self._opening.mode)))

    def ping(self) -> None:
        """Have the verifier answer with a ``Pong``."""
        self.send(Up(ping=Ping()))

    @property
    def arrived(self) -> float:
        """When the event came that ``receive`` returned last (``time.perf_counter``): the edge may have drafted on."""
        return self._stream.arrived if self._stream is not None else time.perf_counter()

    @property
    def steady(self) -> bool:
        """Whether the mode can be changed: no change is under way, and the prompt is read."""
        return not (self.fresh or self._switching)

    def receive(self, wait: bool = True) -> Event | None:
        """What comes of it next; None where there is nothing yet and nobody waits."""
        assert self._stream is not None
        try:
            down = self._stream.receive(wait)
            return None if down is None else self._take(down)
        except Broken as broken:
            return self._recover(str(broken))

    def leave(self) -> None:
        """Nothing more is wanted."""
        if self._stream is not None:
            self._stream.finish(Up(leave=Leave()), LEAVING)
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
            if down.tokens.last:
                self.streams = self._switching = False
            self.seconds = down.tokens.tenths / TENTHS or self.seconds
            return down.tokens
        if kind == "pong":
            return down.pong
        if kind == "end":
            self.end = down.end
            return down.end
        raise self._refusal(down)

    def _refusal(self, down: Down) -> Exception:
        """What to raise for a message that ends the session: ``Broken`` where to begin anew may help."""
        error = down.error
        if not down.HasField("error"):
            return AnswerError("the verifier says what this version does not know: use the same version on both sides")
        if error.code in (IDLE, BUSY):
            self._opening.session = b""
            return Broken(error.message)
        return AnswerError(f"the verifier refuses: {error.message}")

    def _begin(self) -> Anew:
        """Resume the session, or open it behind the output so far, whichever the verifier can."""
        if self._complete():
            return Anew([], False)
        stream = self._stream = self._connection.stream()
        self.budget = int(self._model.limits.draft)
        known = bool(self._opening.session)
        self._opening.output[:] = self.output
        stream.send(Up(open=self._opening))
        draft = self._redraft(self.budget) if known and not (self.fresh or self.streams) else None
        if draft is not None:
            stream.send(Up(draft=draft))
        first = stream.receive()
        assert first is not None
        if first.HasField("opened"):
            self._opening.session, self.fresh = first.opened.session, True
            self.opened += 1
            self.streams, self._switching = self._opening.mode == STREAM, False
            return Anew([], False)
        if known and first.HasField("tokens"):
            self.fresh = self.fresh and not first.tokens.tokens
            return Anew(list(first.tokens.tokens), draft is not None)
        raise self._refusal(first)

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

    def _recover(self, reason: str) -> Anew:
        began = time.monotonic()
        if self._switching:
            # Nobody knows whether the verifier has read the change: in a new session it need not.
            self._opening.session = b""
        self.breaks += 1
        while True:
            if self._stream is not None:
                self._stream.close()
                self._stream = None
            lost = time.monotonic() - began
            if self._outage.policy != "wait" and lost > self._outage.patience:
                self._give_up(reason)
            try:
                anew = self._begin()
            except Broken as broken:
                reason = str(broken)
                gone = time.monotonic() - began
                time.sleep(min(max(SHORTEST_PAUSE, PAUSE_SHARE * gone), LONGEST_PAUSE))
                self._connection.renew()
                continue
            self.lost += time.monotonic() - began
            return anew

    def _give_up(self, reason: str) -> None:
        if self._outage.policy == "edge":
            raise Alone(reason)
        raise AnswerError(f"no verifier for {self._outage.patience:g} s (--patience): {reason}")
