"""The drafter of an answer whose drafts come over the wire."""

from __future__ import annotations

import threading
from collections import deque

from ianvs_specdec.engine import Context, Drafter, TokenTree
from ianvs_specdec.net.split import MAX_IN_FLIGHT
from ianvs_specdec.net.split.split_pb2 import Draft
from ianvs_specdec.net.split.wire import decode_draft, node_at


class RemoteDrafter(Drafter):
    """Hands on the drafts of one edge, of at most ``most`` tokens each.

    Drafts are offered on one thread, and proposed and judged on the engine's.
    """

    remote = True

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int | None, TokenTree]] = deque()
        """Drafts behind the one that is verified, each with the token that it expects to build on."""
        self._tree: TokenTree | None = None
        """The draft that is verified."""
        self._last = -1
        """The last confirmed token; -1 before the prompt is read."""
        self._whole = False
        """Whether the last draft was accepted to its end, as those that were sent behind it assume."""
        self.ready = False
        self.budget = 0
        """Tokens that the speculation length granted the draft that was judged last."""

    def offer(self, draft: Draft) -> bool:
        """A draft has come. Returns whether it is the next to verify. Raises ``ValueError`` for one that makes no tree,
        or whose turn it is not."""
        guess = draft.guess - 1 if draft.guess else None
        tree = decode_draft(draft, -1, self._most)
        with self._lock:
            if self._last < 0 or (guess is None and self._tree is not None):
                raise ValueError("a draft came before the answer to the message before it")
            if len(self._waiting) >= MAX_IN_FLIGHT:
                raise ValueError(f"more than {MAX_IN_FLIGHT} drafts wait for their verdicts")
            if self._tree is not None:
                self._waiting.append((guess, tree))
                return False
            self._take(guess, tree)
            return self.ready

    def judged(self, tokens: list[int]) -> int | None:
        """The engine has put out ``tokens``. Returns the last accepted node of the draft, None where there was none."""
        with self._lock:
            tree, self._tree, self._last = self._tree, None, tokens[-1]
            self._whole = tree is not None and len(tokens) == len(tree)
            while self._waiting and self._tree is None:
                self._take(*self._waiting.popleft())
            self.ready = self._tree is not None
        return None if tree is None else node_at(tree, tokens[:-1])

    def _take(self, guess: int | None, tree: TokenTree) -> None:
        """Verify ``tree`` next, unless it builds on another outcome: then those behind it do, too."""
        self._whole = guess is None or (self._whole and guess == self._last)
        if self._whole:
            tree.tokens[0] = self._last
            self._tree, self.ready, self.budget = tree, True, 0

    def propose(self, context: Context, budget: int) -> TokenTree:
        assert self._tree is not None
        self.budget = min(budget, self._most)
        tree = self._tree
        if len(tree) - 1 > budget:
            return TokenTree(tree.tokens[: budget + 1], tree.parents[: budget + 1])
        return tree
