"""Prompt lookup: propose what followed the last time the same n tokens occurred (Saxena 2023)."""

from __future__ import annotations

from ianvs_specdec.engine import Context, Drafter, Output, Target, TokenTree


class PromptLookup(Drafter):
    """Matches the longest suffix of the context, ``max_ngram`` tokens down to one, that occurred before.

    Of several occurrences the latest counts. A match that runs into the end of the context goes on with what it
    proposes itself, so that a repetition is drafted to the full length.
    """

    def __init__(self, max_ngram: int = 3) -> None:
        self._max_ngram = max_ngram

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        # A trie over reversed n-grams: one look-up per token of the suffix. A node is known by its parent and its
        # token.
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
        """Note, for every n-gram that some token follows, where that token stands."""
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
    """What follows ``start``, over the end of ``tokens`` as if they repeated themselves from there."""
    draft = tokens[start : start + max(length, 0)]
    period = len(tokens) - start
    while len(draft) < length:
        draft.append(draft[-period])
    return draft
