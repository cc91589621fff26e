"""When an output is complete: end-of-sequence tokens, stop strings, the token limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Stop = Callable[[list[int]], "int | None"]
"""Given all output ids so far, the number of them to keep because the output is complete, or None to go on."""


class TextPieces:
    """The text that each token of one output adds, token by token.

    The text of a token depends on its neighbours (spaces, bytes of one character), so a window of settled tokens is
    decoded with it. A token that leaves a character unfinished adds nothing; the one that finishes it adds it.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window = 0
        self._shown = 0

    def next(self, ids: list[int], end: int) -> str:
        """The text that token ``end - 1`` of ``ids`` adds. Called for 1, 2, 3, ..."""
        before = self._decode(ids[self._window : self._shown])
        now = self._decode(ids[self._window : end])
        # An unfinished character shows as U+FFFD and waits for its other bytes.
        if now.endswith("\ufffd") or len(now) < len(before):
            return ""
        # What adds nothing, a special token, must not be all that the next one has before it: tokenizers drop the space
        # at the beginning of a text.
        if len(now) > len(before):
            self._window = self._shown
        self._shown = end
        return now[len(before) :]


class StopStrings:
    """Finds the first token that completes a stop string. One instance serves one request.

    Text is decoded incrementally, a few tokens at a time, so that the cost per token does not grow with the output. A
    stop string may span tokens and may begin or end inside one; the token that completes it is the last one kept, and
    ``trim`` cuts the text where the stop string begins.
    """

    def __init__(self, decode: Callable[[list[int]], str], strings: Iterable[str]) -> None:
        self._pieces = TextPieces(decode)
        self._strings = [s for s in strings if s]
        self._reach = max((len(s) for s in self._strings), default=1) - 1
        self._tail = ""
        self._checked = 0

    def __call__(self, ids: list[int]) -> int | None:
        """``ids`` is the whole output so far; each call continues where the one before ended."""
        while self._strings and self._checked < len(ids):
            self._checked += 1
            text = self._tail + self._pieces.next(ids, self._checked)
            if any(s in text for s in self._strings):
                return self._checked
            self._tail = text[-self._reach :] if self._reach else ""
        return None

    def after(self, begun: Sequence[int]) -> Stop:
        """The same for an output that continues ``begun``: its ids are those after these."""
        if not begun:
            return self

        def stop(ids: list[int]) -> int | None:
            kept = self([*begun, *ids])
            return None if kept is None else kept - len(begun)

        return stop

    def trim(self, text: str) -> str:
        """``text`` up to the earliest stop string."""
        return text[: min((i for s in self._strings if (i := text.find(s)) >= 0), default=len(text))]


class OutputIds:
    """The output ids of one request, cut exactly where it ends.

    ``finish_reason`` is None while it goes on, then ``"stop"`` (an id of ``eos_ids``, which stays in the output, or
    ``stop``) or ``"length"`` (``max_tokens``).
    """

    def __init__(self, max_tokens: int, eos_ids: Iterable[int], stop: Stop | None = None) -> None:
        self.ids: list[int] = []
        self.finish_reason: str | None = None
        self._max_tokens = max_tokens
        self._eos_ids = frozenset(eos_ids)
        self._stop = stop

    @property
    def remaining(self) -> int:
        return self._max_tokens - len(self.ids)

    def add(self, tokens: Sequence[int]) -> list[int]:
        """Append what belongs to the output and return it."""
        before = len(self.ids)
        eos = next((i + 1 for i, token in enumerate(tokens) if token in self._eos_ids), None)
        self.ids += tokens[: min(eos or len(tokens), self.remaining)]
        if eos is not None and len(self.ids) == before + eos:
            self.finish_reason = "stop"
        elif self.remaining == 0:
            self.finish_reason = "length"
        kept = self._stop(self.ids) if self._stop else None
        if kept is not None:
            del self.ids[kept:]
            self.finish_reason = "stop"
        return self.ids[before:]
