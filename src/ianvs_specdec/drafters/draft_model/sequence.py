"""A draft model's sequence, synchronized with the target's output."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from itertools import takewhile
from typing import Any

from torch import Tensor

from ianvs_specdec.drafters.lockstep import Growth
from ianvs_specdec.engine import Output, Target, TokenTree
from ianvs_specdec.engine.contracts import SequenceState, StepInput, prompt_chunks

READ_AT_ONCE = 256
"""Tokens per step after a pause, for models that read prompts whole; each has logits."""

POINTS = 8
"""Number of states to return to: retokenized text changes only near its end, and some states are copies."""

Steps = Generator[tuple[SequenceState, StepInput], Output, None]
"""A generator of inputs for the model, which receives outputs (see ``lockstep``)."""
Growing = Growth[tuple[SequenceState, StepInput], Output]
"""A draft of such steps."""


class DraftSequence:
    """The input of a draft model: the context, and a tree of drafts that grows level by level.

    Accepted drafts stay in the model, so that usually one or two tokens are new to it. While the tree is a chain, each
    level is one forward pass of one token. From the first branch on, the paths to the requested nodes are recomputed
    each time, which any target can do: a few tokens cost little more than one.
    """

    def __init__(self, model: Target) -> None:
        self.model = model
        self._kept = 0
        self._fed: TokenTree | None = None
        self._state = model.open()

    def close(self) -> None:
        self._state.close()

    def reach(self, context: Sequence[int]) -> int:
        """Number of levels that can be drafted after ``context``; 0 if the model lacks one of its tokens or positions.

        The context has at least two tokens and extends the previous one.
        """
        if max(context[self._kept :]) >= len(self.model.embedding):
            return 0
        return sys.maxsize if self.model.window is None else self.model.window - len(context) + 1

    def unread_tokens(self, context: Sequence[int]) -> int:
        """Number of tokens before the last of ``context`` that the model has not read."""
        missing = len(context) - 1 - self._kept
        if self._fed is None or missing == 0:
            return missing
        drafted = context[self._kept : self._kept + min(missing, len(self._ahead) + len(self._fed))]
        same = self._same(drafted)
        return missing - same - (len(_path(self._fed, drafted[same:])) if same == len(self._ahead) else 0)

    def follow(self, context: Sequence[int]) -> Steps:
        """Keep the drafts that are now part of the context, and read missing tokens. The last token of the context is
        node 0 of the next tree."""
        if self._kept == 0:
            for piece in prompt_chunks(context[:-1], self.model.prompt_rows):
                yield self._state, piece
            self._kept = len(context) - 1
        elif self._fed is not None:
            self._kept += self._keep(self._fed, context[self._kept : -1])
        if len(context) - self._kept > 2:
            yield from self._catch_up(context[self._kept : -1])
        # Committed drafts, as tokens and as nodes of the tree, and states to return to with their number of drafts.
        self._ahead: list[int] = []
        self._nodes: list[int] = []
        self._states: list[tuple[int, Any]] = [(0, self._state.snapshot())]
        self._fed = None
        self._numbers: dict[int, int] = {}
        # Those before the last one are nodes with negative numbers.
        self._missing = context[self._kept :]

    def logits(
        self, tree: tuple[Sequence[int], Sequence[int]], nodes: Sequence[int]
    ) -> Generator[tuple[SequenceState, StepInput], Output, Tensor]:
        """Logits ``[nodes, vocabulary]`` after these nodes of a tree, given by its tokens and parents.

        Node 0 is requested first, then children of requested nodes, each node once.
        """
        tokens, parents = tree
        self._settle(tokens, parents, nodes)
        kept = set(self._nodes)
        fed = set(nodes)
        for node in nodes:
            above = self._parent(parents, node)
            while above is not None and above not in kept and above not in fed:
                fed.add(above)
                above = self._parent(parents, above)
        order = sorted(fed)
        self._numbers = {node: number for number, node in enumerate(order)}
        hangs_off = [self._parent(parents, node) for node in order]
        self._fed = TokenTree(
            [self._token(tokens, node) for node in order],
            [-1 if node is None else self._numbers.get(node, -1) for node in hangs_off],
        )
        output = yield self._state, self._fed
        return output.logits[[self._numbers[node] for node in nodes]]

    def _token(self, tokens: Sequence[int], node: int) -> int:
        return tokens[node] if node > 0 else self._missing[node - 1]

    def _parent(self, parents: Sequence[int], node: int) -> int | None:
        """None for the first missing token."""
        if node > 0:
            return parents[node]
        return node - 1 if node > 1 - len(self._missing) else None

    def _settle(self, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> None:
        """Bring the state to the last common ancestor of ``nodes``: commit computed nodes on the way, drop others."""
        if self._fed is None:
            return
        place = {node: i for i, node in enumerate(self._nodes)}
        anchors, paths = [], []
        for node in nodes:
            path_up, above = [node], self._parent(parents, node)
            while above is not None and above not in place:
                path_up.append(above)
                above = self._parent(parents, above)
            anchors.append(-1 if above is None else place[above])
            paths.append(path_up[::-1])
        common = min(anchors) + 1
        shared = [node for node, *others in zip(*paths, strict=False) if all(node == other for other in others)]
        if not shared or max(anchors) + 1 > common:
            # The last common node is fed again, as the root.
            shared, common = [], common - 1
        path = list(takewhile(self._numbers.__contains__, shared[:-1]))
        if path and common == len(self._nodes):
            self._state.commit([self._numbers[node] for node in path])
            self._nodes += path
            self._ahead += [self._token(tokens, node) for node in path]
            self._states.append((len(self._ahead), self._state.snapshot()))
            return
        while self._states[-1][0] > common:
            self._states.pop()
        count, state = self._states[-1]
        self._state.restore(state)
        del self._ahead[count:], self._nodes[count:]

    def _keep(self, fed: TokenTree, tokens: Sequence[int]) -> int:
        """Return to the last state with nothing but ``tokens``. Returns their number."""
        same = self._same(tokens)
        if same == len(self._ahead) and (path := _path(fed, tokens[same:])):
            self._state.commit(path)
            return same + len(path)
        count, state = next(state for state in reversed(self._states) if state[0] <= same)
        self._state.restore(state)
        return count

    def _same(self, tokens: Sequence[int]) -> int:
        """Length of the common prefix of ``tokens`` and the committed drafts."""
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._ahead, tokens, strict=False)))

    def _catch_up(self, tokens: Sequence[int]) -> Steps:
        """Read ``tokens``, possibly many after a pause."""
        rows = self.model.prompt_rows
        for piece in prompt_chunks(tokens, rows or READ_AT_ONCE):
            if rows is None:
                # A target that reads prompts whole continues by trees.
                chain = TokenTree.chain(piece.tokens[0], piece.tokens[1:])
                yield self._state, chain
                self._state.commit(range(len(chain)))
            else:
                yield self._state, piece
        self._kept += len(tokens)


class RewindingSequence(DraftSequence):
    """A sequence whose context may change near its end: what follows the common prefix is dropped."""

    def __init__(self, model: Target) -> None:
        super().__init__(model)
        self._context: Sequence[int] = ()
        self._points: list[tuple[int, Any]] = []
        """Lengths of earlier contexts, with their states."""

    def rewind(self, context: Sequence[int]) -> None:
        """Return to the last point that ``context`` shares, or start anew."""
        pairs = zip(self._context[: self._kept], context[:-1], strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if same == self._kept:
            return
        while self._points and self._points[-1][0] > same:
            self._points.pop()
        self._fed = None
        if self._points:
            self._kept, state = self._points[-1]
            self._state.restore(state)
        else:
            self._state.close()
            self._kept, self._state = 0, self.model.open()

    def follow(self, context: Sequence[int]) -> Steps:
        yield from super().follow(context)
        self._context = context
        self._points = [*self._points[1 - POINTS :], (self._kept, self._states[0][1])]


def _path(tree: TokenTree, tokens: Sequence[int]) -> list[int]:
    """The path from the root that carries ``tokens``, as far as it exists."""
    path: list[int] = []
    candidates = [0]
    for token in tokens:
        node = next((node for node in candidates if tree.tokens[node] == token), None)
        if node is None:
            break
        path.append(node)
        candidates = tree.children[node]
    return path
