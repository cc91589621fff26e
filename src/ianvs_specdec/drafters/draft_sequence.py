"""The sequence inside a draft model, kept in step with the output of the target."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ianvs_specdec.decoding import Target, TokenTree


class DraftSequence:
    """What a draft model was fed: the context, and on top of it a tree of drafts that grows level by level.

    Drafts that became part of the context stay in the model, so that usually one or two tokens are new to it. The tree
    is computed anew for every level: for a few tokens a forward costs about what it costs for one, and any target can.
    """

    def __init__(self, model: Target) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        """Another context comes."""
        self._kept = 0
        self._fed: TokenTree | None = None

    def reach(self, context: Sequence[int]) -> int:
        """How many levels can be drafted after ``context``; none where the model lacks one of its tokens or positions.

        The context has at least two tokens and begins as it did before.
        """
        if max(context[self._kept :]) >= len(self._model.embedding):
            return 0
        return sys.maxsize if self._model.window is None else self._model.window - len(context) + 1

    def follow(self, context: Sequence[int]) -> None:
        """Keep of the drafts what the context has become, and make up for what is missing. The last token of the
        context is node 0 of the tree to come."""
        if self._kept == 0:
            self._model.prefill(context[:-1])
            self._kept = len(context) - 1
        elif self._fed is not None:
            path = _path(self._fed, context[self._kept : -1])
            self._model.commit(path)
            self._kept += len(path)
        if len(context) - self._kept > 2:
            behind = context[self._kept : -1]
            self._model.verify(TokenTree.chain(behind[0], behind[1:]))
            self._model.commit(range(len(behind)))
            self._kept += len(behind)
        self._before: Any = self._model.snapshot()
        self._fed = None
        self._tokens = list(context[self._kept :])
        self._parents = list(range(-1, len(self._tokens) - 1))
        self._numbers = {0: len(self._tokens) - 1}

    def logits(self, tree: tuple[Sequence[int], Sequence[int]], nodes: Sequence[int]) -> Tensor:
        """``[nodes, vocabulary]`` after these nodes of a tree, given as its tokens and parents.

        First node 0 is asked for, then, level by level, children of nodes that were asked for.
        """
        if self._fed is not None:
            self._model.restore(self._before)
            for node in nodes:
                self._numbers[node] = len(self._tokens)
                self._parents.append(self._numbers[tree[1][node]])
                self._tokens.append(tree[0][node])
        self._fed = TokenTree(self._tokens[:], self._parents[:])
        return self._model.verify(self._fed).logits[-len(nodes) :]


def _path(tree: TokenTree, tokens: Sequence[int]) -> list[int]:
    """The nodes from the root down that carry ``tokens``, as far as there are such; the root does."""
    path = [0]
    for token in tokens[1:]:
        child = next((child for child in tree.children[path[-1]] if tree.tokens[child] == token), None)
        if child is None:
            break
        path.append(child)
    return path
