"""The drafter of a request whose drafts arrive over the network."""

from __future__ import annotations

import threading
from collections import deque

from ianvs_specdec.engine import Context, Drafter, TokenTree
from ianvs_specdec.net.split import MAX_IN_FLIGHT
from ianvs_specdec.net.split.split_pb2 import Draft
from ianvs_specdec.net.split.wire import decode_draft, node_at


class RemoteDrafter(Drafter):
    """Proposes the drafts of one edge, each of at most ``most`` tokens.

    ``offer`` is called on the event loop, the other methods on the engine's thread.
    """

    remote = True

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int | None, TokenTree]] = deque()
        """Later drafts, each with the token that it expects as its root."""
        self._tree: TokenTree | None = None
        """The draft to verify."""
        self._last = -1
        """The last confirmed token; -1 before the prompt is read."""
        self._complete = False
        """Whether the last draft was accepted to its end, as later drafts assume."""
        self.ready = False
        self.budget = 0
        """Speculation length of the last proposal."""

    def offer(self, draft: Draft) -> bool:
        """Add a draft. Returns whether it is the next to verify. Raises ``ValueError`` if invalid or too early."""
        guess = draft.guess - 1 if draft.guess else None
        tree = decode_draft(draft, -1, self._most)
        with self._lock:
            if self._last < 0 or (guess is None and self._tree is not None):
                raise ValueError("a draft came before the answer to the previous message")
            if len(self._waiting) >= MAX_IN_FLIGHT:
                raise ValueError(f"more than {MAX_IN_FLIGHT} drafts wait for their verdicts")
            if self._tree is not None:
                self._waiting.append((guess, tree))
                return False
            self._take(guess, tree)
            return self.ready

    def judged(self, tokens: list[int]) -> int | None:
        """The engine emitted ``tokens``. Returns the last accepted node of the draft, None without a draft."""
        with self._lock:
            tree, self._tree, self._last = self._tree, None, tokens[-1]
            self._complete = tree is not None and len(tokens) == len(tree)
            while self._waiting and self._tree is None:
                self._take(*self._waiting.popleft())
            self.ready = self._tree is not None
        return None if tree is None else node_at(tree, tokens[:-1])

    def _take(self, guess: int | None, tree: TokenTree) -> None:
        """Verify ``tree`` next. A wrong guess invalidates it and the drafts after it."""
        self._complete = guess is None or (self._complete and guess == self._last)
        if self._complete:
            tree.tokens[0] = self._last
            self._tree, self.ready, self.budget = tree, True, 0

    def propose(self, context: Context, budget: int) -> TokenTree:
        assert self._tree is not None
        self.budget = min(budget, self._most)
        tree = self._tree
        if len(tree) - 1 > budget:
            return TokenTree(tree.tokens[: budget + 1], tree.parents[: budget + 1])
        return tree
