"""The drafter of a session: what it proposes came over the wire, or of a drafter beside the target."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree
from ianvs_specdec.net.split.split_pb2 import SPLIT, STREAM, Draft, Mode
from ianvs_specdec.net.split.wire import node_of, tree_of


@dataclass(frozen=True)
class Emitted:
    """What a step put out. ``node`` is the last accepted one of the draft whose turn it was, None where none was
    verified; ``budget`` is what the length granted, None where it was not asked. ``seconds`` count from the moment
    from which the verifier was waited for. ``switched``: from here on the edge drafts."""

    tokens: list[int]
    node: int | None
    budget: int | None
    seconds: float
    switched: bool = False


class FarDrafter(Drafter):
    """Hands on the drafts of one session, of at most ``most`` tokens each and ``in_flight`` at a time. While its mode
    is STREAM, ``own`` drafts. ``confirmed`` tokens of the output are part of the prompt.

    Drafts come on one thread, and are proposed and emitted on the engine's. The mode changes between two steps of the
    request only, so that each step has one.
    """

    def __init__(self, own: Drafter, mode: Mode, most: int, in_flight: int, confirmed: int = 0) -> None:
        self._own, self._most, self._in_flight = own, most, in_flight
        self._lock = threading.Lock()
        self._drafts: deque[tuple[Draft, TokenTree, float]] = deque()
        self._tree: TokenTree | None = None
        """The draft whose turn it is."""
        self._since = time.perf_counter()
        self._confirmed, self._last = confirmed, -1
        self._began = False
        self._granted: int | None = None
        self._wanted: Mode | None = None
        self._set(mode)

    @property
    def waits(self) -> bool:
        """Whether a draft is what is missing: the prompt is read."""
        return self._began and not self.ready

    def offer(self, draft: Draft) -> bool:
        """A draft has come. Returns whether it is its turn now. Raises ``ValueError`` for one that makes no tree, or
        one too many."""
        tree = tree_of(draft, 0, self._most)
        with self._lock:
            if len(self._drafts) >= self._in_flight:
                raise ValueError(f"more than {self._in_flight} drafts wait for their verdicts")
            self._drafts.append((draft, tree, time.perf_counter()))
            before = self._tree
            self._advance()
            return self._tree is not before

    def switch(self, mode: Mode) -> bool:
        """Have the edge or ``own`` draft from the next step on. Returns whether there is something to do now."""
        with self._lock:
            self._drafts.clear()
            if self._tree is not None or not self.remote:
                self._wanted = mode
                return False
            self._set(mode)
            self._since = time.perf_counter()
            return self.ready

    def resume(self) -> bool:
        """What was sent and not looked at yet is void: the edge drafts anew. Returns whether a draft is in work."""
        with self._lock:
            self._drafts.clear()
            return self._tree is not None

    def emitted(self, tokens: list[int]) -> Emitted:
        """The engine has put out ``tokens``."""
        with self._lock:
            tree, self._tree = self._tree, None
            self._began = True
            self._confirmed, self._last = self._confirmed + len(tokens), tokens[-1]
            now = time.perf_counter()
            node = None if tree is None else node_of(tree, tokens[:-1])
            granted = self._granted if tree is None else self._granted or 0
            switched = self._wanted is not None and self._wanted == SPLIT and not self.remote
            told = Emitted(tokens, node, granted, now - self._since, switched)
            self._since, self._granted = now, None
            if self._wanted is not None:
                self._set(self._wanted)
                self._wanted = None
            self._advance()
            return told

    def _set(self, mode: Mode) -> None:
        self.remote = mode != STREAM
        self.ready = not self.remote

    def _advance(self) -> None:
        """The next draft that fits what was confirmed has its turn."""
        while self.remote and self._tree is None and self._drafts and self._began:
            draft, tree, came = self._drafts.popleft()
            if draft.position == self._confirmed and draft.guess in (0, self._last + 1):
                tree.tokens[0] = self._last
                self._tree, self._since = tree, max(came, self._since)
        self.ready = not self.remote or self._tree is not None

    @property
    def batch_key(self) -> object:
        return None if self.remote else self._own.batch_key

    @property
    def unread_tokens(self) -> int:
        return 0 if self.remote else self._own.unread_tokens

    def prepare(self, target: Target) -> Sequence[int]:
        return self._own.prepare(target)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._own.begin(target, context, prefill)

    def propose(self, context: Context, budget: int) -> TokenTree:
        self._granted = budget
        if not self.remote:
            return self._own.propose(context, budget)
        assert self._tree is not None
        tree = self._tree
        if len(tree) - 1 > budget:
            return TokenTree(tree.tokens[: budget + 1], tree.parents[: budget + 1])
        return tree

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[FarDrafter, Context, int]]) -> Sequence[TokenTree | Exception]:
        # Asked only where what the own drafters have in common drafts for all of them.
        own = [(drafter._own, context, budget) for drafter, context, budget in drafts]
        for drafter, _, budget in drafts:
            drafter._granted = budget
        return type(own[0][0]).propose_all(own)

    def observe(self, observation: Observation) -> None:
        self._own.observe(observation)

    def end(self) -> None:
        self._own.end()
