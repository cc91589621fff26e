"""End of an output: end-of-sequence tokens, stop strings, the token limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Stop = Callable[[list[int]], "int | None"]
"""Given all output ids so far, the number of ids to keep if the output is complete, else None."""


MAX_HELD = 16
"""Tokens that may wait for the rest of a character or for text; after that, incomplete bytes are emitted as they
are."""
CHARACTER = 4  # bytes, at most


class TextPieces:
    """Incremental detokenization. The pieces, and the remainder at the end, add up to the text of all tokens.

    The text of a token depends on its neighbours (spaces, bytes of one character), so only the last tokens are decoded
    with it: the cost per token does not grow with the output. An incomplete character is emitted when it is complete.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._settled = self._given = 0
        """Number of ids whose text is final, and of characters of their text already returned."""

    def next(self, ids: Sequence[int]) -> str:
        """The text that ``ids`` add to those of earlier calls."""
        self._ids += ids
        # An unfinished character shows as U+FFFD, and with some tokenizers all bytes before it do.
        text, tokens = self._decode(self._ids), len(self._ids)
        if len(text) > self._given and not text.endswith("\ufffd"):
            return self._settle(tokens, text)
        if tokens - self._settled <= MAX_HELD:
            return ""
        first = tokens - max(CHARACTER - 1, len(ids))
        if self._decode(self._ids[:first]) == text:
            # Special tokens without text. Text must remain before the next one: tokenizers drop a leading space.
            del self._ids[first:]
            return ""
        ends = range(tokens - 1, tokens - CHARACTER, -1)
        texts = {end: self._decode(self._ids[:end]) for end in ends}
        # If no character ends among the last bytes, the earlier ones are invalid.
        end = next((end for end in ends if not texts[end].endswith("\ufffd")), ends[-1])
        return self._settle(end, texts[end])

    def _settle(self, end: int, text: str) -> str:
        """Make the ids up to ``end``, with text ``text``, final. Returns the added text."""
        piece = text[self._given :]
        del self._ids[: self._settled]
        self._settled = end - self._settled
        self._given = len(self._decode(self._ids[: self._settled]))
        return piece


class StopStrings:
    """Finds the first token that completes a stop string. One instance serves one request.

    Text is decoded incrementally. A stop string may span tokens and begin or end inside one; the token that completes
    it is the last one kept, and ``trim`` cuts the text where the stop string begins.
    """

    def __init__(self, decode: Callable[[list[int]], str], strings: Iterable[str]) -> None:
        self._pieces = TextPieces(decode)
        self._strings = [s for s in strings if s]
        self._reach = max((len(s) for s in self._strings), default=1) - 1
        self._tail = ""
        self._checked = 0

    def __call__(self, ids: list[int]) -> int | None:
        """``ids`` is the whole output so far; each call continues after the previous one."""
        while self._strings and self._checked < len(ids):
            self._checked += 1
            text = self._tail + self._pieces.next(ids[self._checked - 1 : self._checked])
            if any(s in text for s in self._strings):
                return self._checked
            self._tail = text[-self._reach :] if self._reach else ""
        return None

    def after(self, begun: Sequence[int]) -> Stop:
        """The same for an output that continues ``begun``."""
        before = list(begun)

        def stop(ids: list[int]) -> int | None:
            kept = self([*before, *ids])
            return None if kept is None else max(0, kept - len(before))

        return stop

    def trim(self, text: str) -> str:
        return text[: min((i for s in self._strings if (i := text.find(s)) >= 0), default=len(text))]


class OutputIds:
    """The output ids of one request, cut exactly at its end.

    ``finish_reason`` is None while it runs, then ``"stop"`` (an id of ``eos_ids``, which is kept, or ``stop``) or
    ``"length"`` (``max_tokens``).
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
