"""The thought before an answer, told from it while both arrive."""

from __future__ import annotations

import regex

from ianvs_specdec.benchmarks.reasoning import QUOTE, TAGS

# Of a mark in plain words, nearly every answer could be the beginning, and would have to wait.
_TAGS = [marks for marks in TAGS if not marks[0].startswith(r"\A")]
_TAG, _END_TAG = (f"(?:{'|'.join(tags)})" for tags in zip(*_TAGS, strict=True))
_FRONT = regex.compile(rf"(?i){_TAG}|{_END_TAG}")
_MARK = regex.compile(
    rf"(?i)(?P<shown>{QUOTE}(?:{_TAG}|{_END_TAG})(?P=quote))|(?P<end>{_END_TAG})"
    rf"|<\|channel\|>(?!final)[^<]{{0,40}}<\|message\|>|<\|start\|>assistant|<\|end\|>|(?!<\|channel\|>){_TAG}"
)


class ReasoningParser:
    """Splits a text that arrives in pieces into the thought at its front, between tags, and the answer, both without
    tags and line ends around them. A thought that nothing opens, or that follows the answer, is part of the answer,
    and so is white space before a thought. ``found``: whether there was a thought.
    """

    def __init__(self) -> None:
        self._text = self._line_ends = ""
        # Characters at the front of the text that were handed out, which a quotation mark may follow.
        self._place = 0
        self._thinks: bool | None = None
        self._trims = self.found = False

    def __call__(self, piece: str, *, last: bool = False) -> tuple[str, str]:
        """What a piece adds to the thought and to the answer. What may be part of a tag waits, unless it is the
        ``last``, and line ends in a thought wait for more of it."""
        self._text += piece
        thought = space = ""
        if self._thinks is None:
            front = self._text.lstrip()
            space, self._text = self._text[: len(self._text) - len(front)], front
            found = _FRONT.match(front, partial=not last)
            if found is not None and found.partial:
                return "", space
            self._thinks = self._trims = self.found = found is not None
        if self._thinks:
            thought = self._trimmed(self._thought(last))
            if self._thinks:
                return thought, space
            self._trims = True
        answer, self._text = self._text, ""
        return thought, space + self._trimmed(answer)

    def _thought(self, last: bool) -> str:
        said, place, rest = "", self._place, len(self._text)
        while (found := _MARK.search(self._text, place, partial=not last)) is not None:
            grows = not last and found.end() == len(self._text)
            if found.partial or grows:
                # With a quotation mark before it, which decides together with the next character.
                rest = max(place, found.start() - grows)
                break
            said += self._text[place : found.start()] + (found["shown"] or "")
            place = found.end()
            if found["end"] is not None:
                self._thinks, rest = False, place
                break
        said += self._text[place:rest]
        self._place = min(rest, 2) if self._thinks else 0
        self._text = self._text[rest - self._place :]
        unfinished = last and self._thinks
        kept = said if unfinished else said.rstrip("\r\n")
        if not kept and not unfinished:
            self._line_ends += said
            return ""
        before, self._line_ends = self._line_ends, said[len(kept) :]
        return before + kept

    def _trimmed(self, text: str) -> str:
        text = text.lstrip("\r\n") if self._trims else text
        self._trims = self._trims and not text
        return text
