"""Separation of a model's reasoning from its answer in streamed text."""

from __future__ import annotations

import regex

from ianvs_specdec.benchmarks.reasoning import QUOTE, TAGS

# Not the plain-text markers: almost any answer could begin with one, and would be delayed.
_TAGS = [pair for pair in TAGS if not pair[0].startswith(r"\A")]
_TAG, _END_TAG = (f"(?:{'|'.join(tags)})" for tags in zip(*_TAGS, strict=True))
_FRONT = regex.compile(rf"(?i){_TAG}|{_END_TAG}")
_MARK = regex.compile(
    rf"(?i)(?P<shown>{QUOTE}(?:{_TAG}|{_END_TAG})(?P=quote))|(?P<end>{_END_TAG})"
    rf"|<\|channel\|>(?!final)[^<]{{0,40}}<\|message\|>|<\|start\|>assistant|<\|end\|>|(?!<\|channel\|>){_TAG}"
)


class ReasoningParser:
    """Splits streamed text into the reasoning at its front, between tags, and the answer, without tags and the line
    ends around them. Reasoning without an opening tag or after the answer is part of the answer, as is white space
    before it. ``found``: whether there was reasoning.
    """

    def __init__(self) -> None:
        self._text = self._line_ends = ""
        # Characters of the text that were already returned, kept to detect quotation marks.
        self._place = 0
        self._in_reasoning: bool | None = None
        self._trims = self.found = False

    def __call__(self, piece: str, *, last: bool = False) -> tuple[str, str]:
        """The reasoning and the answer that a piece adds. Possible parts of tags, and line ends in reasoning, are held
        back until the next piece, or the ``last``."""
        self._text += piece
        reasoning = space = ""
        if self._in_reasoning is None:
            front = self._text.lstrip()
            space, self._text = self._text[: len(self._text) - len(front)], front
            found = _FRONT.match(front, partial=not last)
            if found is not None and found.partial:
                return "", space
            self._in_reasoning = self._trims = self.found = found is not None
        if self._in_reasoning:
            reasoning = self._trimmed(self._reasoning(last))
            if self._in_reasoning:
                return reasoning, space
            self._trims = True
        answer, self._text = self._text, ""
        return reasoning, space + self._trimmed(answer)

    def _reasoning(self, last: bool) -> str:
        text, place, rest = "", self._place, len(self._text)
        while (found := _MARK.search(self._text, place, partial=not last)) is not None:
            grows = not last and found.end() == len(self._text)
            if found.partial or grows:
                # With the quotation mark before it, which decides together with the next character.
                rest = max(place, found.start() - grows)
                break
            text += self._text[place : found.start()] + (found["shown"] or "")
            place = found.end()
            if found["end"] is not None:
                self._in_reasoning, rest = False, place
                break
        text += self._text[place:rest]
        self._place = min(rest, 2) if self._in_reasoning else 0
        self._text = self._text[rest - self._place :]
        unfinished = last and self._in_reasoning
        kept = text if unfinished else text.rstrip("\r\n")
        if not kept and not unfinished:
            self._line_ends += text
            return ""
        before, self._line_ends = self._line_ends, text[len(kept) :]
        return before + kept

    def _trimmed(self, text: str) -> str:
        text = text.lstrip("\r\n") if self._trims else text
        self._trims = self._trims and not text
        return text
