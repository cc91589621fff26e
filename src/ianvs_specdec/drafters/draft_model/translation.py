"""Conversion between the token ids of a target and of a draft model with another tokenizer, through the text.

As in universal assisted decoding and SLEM (Timor et al. 2025, arXiv 2502.05202).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TAIL = 8
"""Tokens of context that are converted with a draft, since text (spaces) and tokens (merges) depend on it."""
INCOMPLETE = "\ufffd"
"""What tokenizers decode incomplete characters to."""


class Translation:
    """``target`` and ``draft`` are tokenizers of transformers. Not thread-safe."""

    def __init__(self, target: Any, draft: Any) -> None:
        self._target, self._draft = target, draft
        self.ends = _special(draft).keys()
        """The draft model's special tokens."""
        known = draft.get_vocab()
        self._dropped = {number for number, content in _special(target).items() if content not in known}

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The draft model's ids of the text of the target's ``tokens``, without unknown special tokens; empty if the
        text ends within a character."""
        text = _text(self._target, [token for token in tokens if token not in self._dropped], special=True)
        if text.endswith(INCOMPLETE):
            return []
        ids: list[int] = self._draft(text, verbose=False)["input_ids"]
        return ids[1:] if ids[:2] == [self._draft.bos_token_id] * 2 else ids

    def write(self, tokens: Sequence[int], read: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """The target's ids of the text of ``drafted``, which follows ``read``, after ``tokens``."""
        tail = list(read[-TAIL:])
        before, after = _text(self._draft, tail), _text(self._draft, [*tail, *drafted])
        text = after.removeprefix(before).partition(INCOMPLETE)[0] if after.startswith(before) else ""
        if not text:
            return []
        for size in range(min(TAIL, len(tokens)), 0, -1):
            known = list(tokens[-size:])
            written = self._ids(_text(self._target, known, special=True) + text)
            if written[:size] == known:
                return written[size:]
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._target(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


def _special(tokenizer: Any) -> dict[int, str]:
    added = tokenizer.added_tokens_decoder
    return {number: token.content for number, token in added.items() if token.special}


def _text(tokenizer: Any, tokens: Sequence[int], *, special: bool = False) -> str:
    settings = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
    text: str = tokenizer.decode(list(tokens), **settings)
    return text
