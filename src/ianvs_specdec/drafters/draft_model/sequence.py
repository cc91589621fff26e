"""The sequence inside a draft model, kept in step with the output of the target."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from itertools import takewhile
from typing import Any

from torch import Tensor

from ianvs_specdec.decoding import Output, Target, TokenTree
from ianvs_specdec.decoding.contracts import Piece, SequenceState, pieces
from ianvs_specdec.drafters.lockstep import Growth

READ_AT_ONCE = 256
"""Tokens that a model without pieces of its own reads in one step after a pause: of each there are logits."""

Steps = Generator[tuple[SequenceState, Piece], Output, None]
"""What the model has to compute, and what it computed (see ``lockstep``)."""
Growing = Growth[tuple[SequenceState, Piece], Output]
"""A draft in the making, of such steps."""


class DraftSequence:
    """What a draft model was fed: the context, and on top of it a tree of drafts that grows level by level.

    Drafts that became part of the context stay in the model, so that usually one or two tokens are new to it. As long
    as the tree is a chain, each level is one forward of one token. From where it branches it is computed anew for
    every level, which any target can: for a few tokens a forward costs little more than for one.
    """

    def __init__(self, model: Target) -> None:
        self.model = model
        self._kept = 0
        self._fed: TokenTree | None = None
        self._state = model.open()

    def close(self) -> None:
        """Give the memory back."""
        self._state.close()

    def reach(self, context: Sequence[int]) -> int:
        """How many levels can be drafted after ``context``; none where the model lacks one of its tokens or positions.

        The context has at least two tokens and begins as it did before.
        """
        if max(context[self._kept :]) >= len(self.model.embedding):
            return 0
        return sys.maxsize if self.model.window is None else self.model.window - len(context) + 1

    def behind(self, context: Sequence[int]) -> int:
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
            for piece in pieces(context[:-1], self.model.prompt_rows):
                yield self._state, piece
            self._kept = len(context) - 1
        elif self._fed is not None:
            self._kept += self._keep(self._fed, context[self._kept : -1])
        if len(context) - self._kept > 2:
            yield from self._catch_up(context[self._kept : -1])
        # Drafts that are in the model already, and the states to go back to, each after so many of them.
        self._ahead: list[int] = []
        self._states: list[tuple[int, Any]] = [(0, self._state.snapshot())]
        self._fed = None
        missing = context[self._kept :]
        self._tokens, self._parents = list(missing), list(range(-1, len(missing) - 1))
        self._numbers = {0: len(missing) - 1}

    def logits(
        self, tree: tuple[Sequence[int], Sequence[int]], nodes: Sequence[int]
    ) -> Generator[tuple[SequenceState, Piece], Output, Tensor]:
        """``[nodes, vocabulary]`` after these nodes of a tree, given as its tokens and parents.

        First node 0 is asked for, then, level by level, children of nodes that were asked for.
        """
        if self._fed is not None:
            if len(nodes) == 1 and self._fed.is_chain:
                self._commit_chain(self._fed)
            else:
                self._state.restore(self._states[-1][1])
            for node in nodes:
                self._numbers[node] = len(self._tokens)
                self._parents.append(self._numbers.get(tree[1][node], -1))
                self._tokens.append(tree[0][node])
        self._fed = TokenTree(self._tokens[:], self._parents[:])
        output = yield self._state, self._fed
        return output.logits[-len(nodes) :]

    def _commit_chain(self, chain: TokenTree) -> None:
        self._state.commit(range(len(chain)))
        self._ahead += chain.tokens
        self._states.append((len(self._ahead), self._state.snapshot()))
        self._tokens, self._parents, self._numbers = [], [], {}

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
        for piece in pieces(tokens, rows or READ_AT_ONCE):
            if rows is None:
                # A target that takes prompts whole goes on by trees.
                chain = TokenTree.chain(piece.tokens[0], piece.tokens[1:])
                yield self._state, chain
                self._state.commit(range(len(chain)))
            else:
                yield self._state, piece
        self._kept += len(tokens)


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
