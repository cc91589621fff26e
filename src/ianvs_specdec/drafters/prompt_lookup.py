"""Prompt lookup: propose what followed the last time the same n tokens occurred (Saxena 2023)."""

from __future__ import annotations

from ianvs_specdec.engine import Context, Drafter, Output, Target, TokenTree


class PromptLookup(Drafter):
    """Matches the longest suffix of the context, from ``max_ngram`` tokens down to one, that occurred before.

    The latest occurrence counts. A match that reaches the end of the context continues with its own proposal, so that
    repetitions are drafted in full length.
    """

    def __init__(self, max_ngram: int = 3) -> None:
        self._max_ngram = max_ngram

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        # A trie over reversed n-grams, (parent, token) -> node: one look-up per token of the suffix.
        self._children: dict[tuple[int, int], int] = {}
        self._followed_at: list[int] = [0]
        self._indexed, self._context = 1, context

    @property
    def unread_tokens(self) -> int:
        return len(self._context.tokens) - self._indexed

    def propose(self, context: Context, budget: int) -> TokenTree:
        tokens = context.tokens
        self._index(tokens)
        node, position = 0, 0
        for token in reversed(tokens[-self._max_ngram :]):
            node = self._children.get((node, token), 0)
            if node == 0:
                break
            position = self._followed_at[node]
        length = min(budget, context.remaining - 1)
        if position == 0 or length < 1:
            return TokenTree.chain(tokens[-1])
        return TokenTree.chain(tokens[-1], repeated(tokens, position, length))

    def _index(self, tokens: list[int]) -> None:
        """Record the position after every n-gram that a token follows."""
        for follower in range(self._indexed, len(tokens)):
            node = 0
            for position in range(follower - 1, max(follower - 1 - self._max_ngram, -1), -1):
                key = (node, tokens[position])
                node = self._children.get(key, 0)
                if node == 0:
                    node = self._children[key] = len(self._followed_at)
                    self._followed_at.append(follower)
                else:
                    self._followed_at[node] = follower
        self._indexed = len(tokens)


def repeated(tokens: list[int], start: int, length: int) -> list[int]:
    """``length`` tokens from ``start``, continuing periodically beyond the end of ``tokens``."""
    draft = tokens[start : start + max(length, 0)]
    period = len(tokens) - start
    while len(draft) < length:
        draft.append(draft[-period])
    return draft
