"""The sequence inside a draft model, kept in step with the output of the target."""

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
"""Tokens that a model without pieces of its own reads in one step after a pause: of each there are logits."""

POINTS = 8
"""States to go back to: a text's tokens change at its end only, and some states are copies."""

Steps = Generator[tuple[SequenceState, StepInput], Output, None]
"""What the model has to compute, and what it computed (see ``lockstep``)."""
Growing = Growth[tuple[SequenceState, StepInput], Output]
"""A draft in the making, of such steps."""


class DraftSequence:
    """What a draft model was fed: the context, and on top of it a tree of drafts that grows level by level.

    Drafts that became part of the context stay in the model, so that usually one or two tokens are new to it. As long
    as the tree is a chain, each level is one forward of one token. From where it branches, what leads to the nodes that
    are asked for is computed anew each time, which any target can: for a few tokens a forward costs little more than
    for one.
    """

    def __init__(self, model: Target) -> None:
        self.model = model
        self._kept = 0
        self._fed: TokenTree | None = None
        self._state = model.open()

    def close(self) -> None:
        self._state.close()

    def reach(self, context: Sequence[int]) -> int:
        """How many levels can be drafted after ``context``; none where the model lacks one of its tokens or positions.

        The context has at least two tokens and begins as it did before.
        """
        if max(context[self._kept :]) >= len(self.model.embedding):
            return 0
        return sys.maxsize if self.model.window is None else self.model.window - len(context) + 1

    def unread_tokens(self, context: Sequence[int]) -> int:
        """How many tokens before the last of ``context`` the model was not fed."""
        missing = len(context) - 1 - self._kept
        if self._fed is None or missing == 0:
            return missing
        drafted = context[self._kept : self._kept + min(missing, len(self._ahead) + len(self._fed))]
        same = self._same(drafted)
        return missing - same - (len(_path(self._fed, drafted[same:])) if same == len(self._ahead) else 0)

    def follow(self, context: Sequence[int]) -> Steps:
        """Keep of the drafts what the context has become, and make up for what is missing. The last token of the
        context is node 0 of the tree to come."""
        if self._kept == 0:
            for piece in prompt_chunks(context[:-1], self.model.prompt_rows):
                yield self._state, piece
            self._kept = len(context) - 1
        elif self._fed is not None:
            self._kept += self._keep(self._fed, context[self._kept : -1])
        if len(context) - self._kept > 2:
            yield from self._catch_up(context[self._kept : -1])
        # Drafts that are in the model already, as tokens and as nodes of the tree, and the states to go back to, each
        # after so many of them.
        self._ahead: list[int] = []
        self._nodes: list[int] = []
        self._states: list[tuple[int, Any]] = [(0, self._state.snapshot())]
        self._fed = None
        self._numbers: dict[int, int] = {}
        # Those before the last one are nodes as well, with numbers below 0.
        self._missing = context[self._kept :]

    def logits(
        self, tree: tuple[Sequence[int], Sequence[int]], nodes: Sequence[int]
    ) -> Generator[tuple[SequenceState, StepInput], Output, Tensor]:
        """``[nodes, vocabulary]`` after these nodes of a tree, given as its tokens and parents.

        First node 0 is asked for, then children of nodes that were asked for, each node once.
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
        """None for the first token that was missing."""
        if node > 0:
            return parents[node]
        return node - 1 if node > 1 - len(self._missing) else None

    def _settle(self, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> None:
        """Have the state hold what all ``nodes`` build on but the last such node, from which they part: what was fed
        already is committed, and what only others build on is dropped."""
        if self._fed is None:
            return
        place = {node: i for i, node in enumerate(self._nodes)}
        anchors, ways = [], []
        for node in nodes:
            way, above = [node], self._parent(parents, node)
            while above is not None and above not in place:
                way.append(above)
                above = self._parent(parents, above)
            anchors.append(-1 if above is None else place[above])
            ways.append(way[::-1])
        common = min(anchors) + 1
        shared = [node for node, *others in zip(*ways, strict=False) if all(node == other for other in others)]
        if not shared or max(anchors) + 1 > common:
            # What they part from is fed again, as the root of what is above it.
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
        """Go back to the last state at which the model was fed nothing but ``tokens``; how many they are."""
        same = self._same(tokens)
        if same == len(self._ahead) and (path := _path(fed, tokens[same:])):
            self._state.commit(path)
            return same + len(path)
        count, state = next(state for state in reversed(self._states) if state[0] <= same)
        self._state.restore(state)
        return count

    def _same(self, tokens: Sequence[int]) -> int:
        """How many of the drafts that were committed ``tokens`` begin with."""
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._ahead, tokens, strict=False)))

    def _catch_up(self, tokens: Sequence[int]) -> Steps:
        """Feed ``tokens``, which may be many after a pause."""
        rows = self.model.prompt_rows
        for piece in prompt_chunks(tokens, rows or READ_AT_ONCE):
            if rows is None:
                # A target that takes prompts whole goes on by trees.
                chain = TokenTree.chain(piece.tokens[0], piece.tokens[1:])
                yield self._state, chain
                self._state.commit(range(len(chain)))
            else:
                yield self._state, piece
        self._kept += len(tokens)


class RewindingSequence(DraftSequence):
    """A sequence whose context may change at its end before it goes on: what is behind the common beginning is
    dropped."""

    def __init__(self, model: Target) -> None:
        super().__init__(model)
        self._context: Sequence[int] = ()
        self._points: list[tuple[int, Any]] = []
        """Lengths of earlier contexts, and the states to go back to."""

    def rewind(self, context: Sequence[int]) -> None:
        """Go back to the last point that ``context`` shares; the model reads anew where there is none."""
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
    """The nodes from the root down that carry ``tokens``, as far as there are such."""
    path: list[int] = []
    candidates = [0]
    for token in tokens:
        node = next((node for node in candidates if tree.tokens[node] == token), None)
        if node is None:
            break
        path.append(node)
        candidates = tree.children[node]
    return path
