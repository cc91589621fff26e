"""What may follow the confirmed output: the likeliest outcomes of a verification, each with a draft behind it."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sequence
from itertools import islice
from math import prod

from ianvs_specdec.engine.contracts import Continuations

WIDEST = 4
"""Lines that grow in the same step. A draft model's step takes about as long for 4 as for 1, which reads all weights
too, and the likeliest line, which is needed most, waits for the others."""
LEAST_LIKELY = 0.005
"""What is reached with less probability is not drafted: it would almost always be in vain."""


class Outlook:
    """A tree of what may follow. Node ``root`` is the last confirmed token."""

    def __init__(self, lines: Continuations) -> None:
        self._lines = lines
        self.root = 0
        # By node. A drafter adds many of them between two verdicts: lists of numbers take the least time.
        self.tokens = [-1]
        self._likely = [1.0]
        """That it follows its parent, as the drafter says."""
        self._children: list[range | None] = [None]
        """The likeliest first; None where nothing was drafted behind it."""

    def likeliest(self, length: int) -> list[int]:
        """The nodes of the likeliest line behind the root, ``length`` at most."""
        return list(islice(self._line(), length))

    def chance(self, nodes: Sequence[int]) -> float:
        """That all of ``nodes``, one behind the other, follow."""
        return prod(self._likely[node] for node in nodes)

    def behind(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that lead from the root over ``tokens``, as far as there are such."""
        found, node = [], self.root
        for token in tokens:
            after = next((child for child in self._children[node] or () if self.tokens[child] == token), None)
            if after is None:
                break
            found.append(node := after)
        return found

    def advance(self, tokens: Sequence[int]) -> bool:
        """``tokens`` were confirmed: the last one is the root from now on. False where it is not in the tree, which is
        of no more use then."""
        path = self.behind(tokens)
        if len(path) < len(tokens):
            return False
        self.root = path[-1]
        return True

    @property
    def drafted(self) -> bool:
        """Whether there is a draft behind the root."""
        return self._children[self.root] is not None

    def grow(self, nodes: Sequence[int]) -> bool:
        """Draft the next token behind each of ``nodes``. False where there was none."""
        for node, found in zip(nodes, self._lines.grow(nodes), strict=True):
            self._children[node] = range(len(self.tokens), len(self.tokens) + len(found))
            self.tokens += [token for token, _ in found]
            self._likely += [probability for _, probability in found]
            self._children += [None] * len(found)
        return any(self._children[node] for node in nodes)

    def tip(self, length: int, ends: Container[int]) -> int | None:
        """Where the likeliest line, of at most ``length`` tokens, goes on; None where it does not."""
        line = [self.root, *self.likeliest(length)]
        return line[-1] if len(line) <= length and self._open(line[-1], ends) else None

    def tips(self, sent: Sequence[int], length: int, ends: Container[int]) -> list[int]:
        """The ``WIDEST`` likeliest nodes that a token is to be drafted behind, so that each outcome has a draft of
        ``length``. Outcomes are the tokens that may follow the root or any of ``sent``, the nodes that are being
        verified."""
        on_their_way = {self.root, *sent}
        # By probability; of the same, the older one first.
        waiting = [(-1.0, self.root, -1)]
        found: list[int] = []
        while waiting and len(found) < WIDEST:
            likely, node, drafted = heapq.heappop(waiting)
            if drafted < length and self._open(node, ends):
                found.append(node)
            for child in self._children[node] or ():
                chance = likely * self._likely[child]
                if child in on_their_way:
                    heapq.heappush(waiting, (chance, child, -1))
                elif chance <= -LEAST_LIKELY:
                    heapq.heappush(waiting, (chance, child, drafted + 1))
        return found

    def _line(self) -> Iterator[int]:
        node = self.root
        while children := self._children[node]:
            node = children[0]
            yield node

    def _open(self, node: int, ends: Container[int]) -> bool:
        return self._children[node] is None and self.tokens[node] not in ends
